"""Feeds the pullers that have caught up: one thread reads and frames a batch once and sends it to all of them.

A puller whose position is ahead of the others, possibly at a timestamp that is never reached, waits at no cost.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from typing import Protocol

from binlake.errors import BinlakeError
from binlake.pump_service.pump.batches import StoredTransaction, TransactionBatch, split_into_frames
from binlake.pump_service.pump.pull import NotNow, StreamReader, catch_up
from binlake.pump_service.pump.service import PumpService
from binlake.rpc import Call, Status
from binlake.rpc.limits import SparingLog
from binlake.wire.blocks import ASKED, PARTS_ASKED

log = SparingLog()

_UNSENT_BYTES, _FIRST_BYTES = 1 << 20, 64 << 10
# Pause between two rounds; longer when many transactions come, so that more of them go out together.
_PACE_S, _BUSY_PACE_S = 0.005, 0.05
_FEW = 4  # a round with more transactions than this is followed by the longer pause
_LOOK_S = 1.0


class Puller:
    """One PullBinlogs call. `last`: the commit_ts up to which everything is sent; `unsent`: bytes sent that the client
    has not taken; `taken`: bytes it has taken; `blocks`: it accepts many binlogs in one message; `parts`: and a large
    one in many; `large`: the one above `last` that is being sent so."""

    __slots__ = (
        "alive", "began", "blocks", "call", "large", "last", "moved_at", "parked", "parts", "taken", "unsent", "well",
    )  # fmt: skip

    def __init__(self, call: Call, after_ts: int) -> None:
        self.call = call
        name, value = ASKED
        self.blocks = call.request.headers.get(name) == value
        name, value = PARTS_ASKED
        self.parts = self.blocks and not call.request.gzip and call.request.headers.get(name) == value
        self.large: StoredTransaction | None = None
        self.last = after_ts
        self.unsent = self.taken = 0
        self.alive = self.well = True
        self.parked = False
        self.began = self.moved_at = time.perf_counter()

    @property
    def most_unsent(self) -> int:
        """How many bytes may be untaken: few at first, so that a client that takes nothing costs little."""
        return min(_UNSENT_BYTES, _FIRST_BYTES + 2 * self.taken)

    @property
    def has_enough(self) -> bool:
        """Whether half of `most_unsent` is untaken; reading for it continues once it has taken some."""
        return self.unsent >= self.most_unsent >> 1


class PullSender(Protocol):
    """Sends frames to pullers (`Pulls`); callable from any thread."""

    service: PumpService

    def send(self, sent: list[tuple[Puller, list[bytes]]]) -> None:
        """Send frames, in order."""

    def read_later(self, puller: Puller) -> None:
        """Read for the puller again as soon as it has taken what it was sent."""

    def fail(self, puller: Puller, error: Exception) -> None:
        """End a pull."""

    def pace(self, worked_s: float) -> None:
        """Let writers go first after `worked_s` of work."""


class LiveFeed:
    """Feeds the pullers that have everything up to `_at`; a puller that is ahead of it waits in `_ahead`."""

    def __init__(self, pulls: PullSender) -> None:
        self._pulls = pulls
        self._changed = threading.Condition()
        self._at = 0
        self._members: dict[Puller, None] = {}
        self._ahead: list[tuple[int, int, Puller]] = []
        self._count = itertools.count()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pump-tail", daemon=True)

    def start(self) -> None:
        """Start the thread; idempotent."""
        if self._thread.ident is None and not self._stopped.is_set():
            self._thread.start()

    def close(self) -> None:
        """Like stop(), but returns only when no thread reads any more."""
        self.stop()
        if self._thread.ident is not None:
            self._thread.join()

    def stop(self) -> None:
        """Stop serving all pullers."""
        self._stopped.set()
        with self._changed:
            self._changed.notify_all()

    def join(self, puller: Puller) -> bool:
        """Feed this puller from now on; False when it lacks transactions that the others already have."""
        with self._changed:
            if not self._members and not self._ahead:
                self._at = min(puller.last, self._pulls.service.watermark)
            if puller.last < self._at:
                return False
            if not puller.alive:
                return True
            if puller.last == self._at:
                self._members[puller] = None
            else:
                heapq.heappush(self._ahead, (puller.last, next(self._count), puller))
            self._changed.notify_all()
            return True

    def forget(self, puller: Puller) -> None:
        """Remove a puller that has ended."""
        with self._changed:
            if self._members.pop(puller, self) is self:
                others = [entry for entry in self._ahead if entry[2] is not puller]
                if len(others) < len(self._ahead):
                    self._ahead = others
                    heapq.heapify(others)

    def drop_farthest(self) -> bool:
        """End the puller whose position is farthest ahead; False when none is ahead. Called on the loop."""
        with self._changed:
            farthest = max(self._ahead, default=None)
        if farthest is not None:
            farthest[2].call.fail(Status.UNAVAILABLE, "closed to make room: this stream waits for the farthest future")
        return farthest is not None

    def _run(self) -> None:
        service = self._pulls.service
        reader = service.build_reader()
        reader.before_large = _refuse_large
        while not self._stopped.is_set():
            with self._changed:
                self._changed.wait_for(lambda: self._members or self._ahead or self._stopped.is_set())
                self._skip_to_first(service.watermark)
                at, has_members = self._at, bool(self._members)
            service.wait_above(at, _LOOK_S, self._stopped.is_set)
            worked = time.thread_time()
            taken = self._feed_all(reader, at) if has_members else 0
            self._pulls.pace(time.thread_time() - worked)
            self._stopped.wait(_BUSY_PACE_S if taken > _FEW else _PACE_S)

    def _skip_to_first(self, watermark: int) -> None:
        # No puller needs transactions before the position of the first one in `_ahead`.
        if not self._members and self._ahead:
            self._at = max(self._at, min(watermark, self._ahead[0][0]))
            self._admit_ahead(self._at)

    def _feed_all(self, reader: StreamReader, at: int) -> int:
        """Send all pullers the transactions that are available; return how many there were."""
        taken = 0
        try:
            for last, batch in catch_up(reader, at, self._stopped.is_set):
                if not self._feed(at, last, batch):
                    break
                at = last
                taken += len(batch)
        except NotNow:
            self._leave_to_readers(at)
        except Exception as error:
            if not isinstance(error, BinlakeError):
                log.exception("pull_broke")
            self._fail_all(error)
        return taken

    def _leave_to_readers(self, at: int) -> None:
        """A large binlog follows: each puller is sent it alone, as it accepts it, and then joins again."""
        with self._changed:
            if self._at != at:
                return
            left, self._members = list(self._members), {}
        for puller in left:
            self._pulls.read_later(puller)

    def _feed(self, at: int, last: int, batch: TransactionBatch) -> bool:
        """Hand `batch`, all in (at, last], to all pullers; False when none waits at `at` any more."""
        with self._changed:
            if self._at != at or not self._members:
                return False
            slow = [puller for puller in self._members if puller.unsent >= puller.most_unsent]
            for puller in slow:
                del self._members[puller]
            fed, self._at = list(self._members), last
            joined = self._admit_ahead(last)
        framed: dict[tuple[bool, bool], list[bytes]] = {}
        sent: list[tuple[Puller, list[bytes]]] = []
        for puller in fed:
            form = puller.blocks, puller.call.request.gzip
            if form not in framed:
                framed[form] = _build_frames(batch, puller)
            sent.append((puller, framed[form]))
            puller.last = last
        for puller in joined:
            sent.append((puller, _build_frames(batch.select_after(puller.last), puller)))
            puller.last = last
        self._pulls.send(sent)
        for puller in slow:
            self._pulls.read_later(puller)
        return True

    def _admit_ahead(self, last: int) -> list[Puller]:
        """Move pullers that are no longer ahead to the members; each needs only a part of the batch ending at
        `last`."""
        joined = []
        while self._ahead and self._ahead[0][0] <= last:
            puller = heapq.heappop(self._ahead)[2]
            self._members[puller] = None
            joined.append(puller)
        return joined

    def _fail_all(self, error: Exception) -> None:
        with self._changed:
            failed, self._members = list(self._members), {}
        for puller in failed:
            self._pulls.fail(puller, error)


def _refuse_large(_size: int) -> None:
    raise NotNow


def _build_frames(batch: TransactionBatch, puller: Puller) -> list[bytes]:
    return [frame for _, frames in split_into_frames(batch, puller.call, blocks=puller.blocks) for frame in frames]
