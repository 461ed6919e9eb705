"""Serves PullBinlogs. A small thread pool reads for pullers that are behind; one thread feeds those at the tail.

At the tail a batch is read and framed once for all, so one more puller costs little more than its socket. A puller that
does not take what it was sent holds no thread and little more than a MiB: it is parked until it has taken that. The
untaken bytes of all pullers are bounded: a puller that has taken nothing for a while is cut off.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from binlake.errors import BinlakeError, ConfigError, LostRange, Transient, WireError
from binlake.pump_service.pump.batches import StoredTransaction, TransactionBatch, split_into_frames
from binlake.pump_service.pump.live_feed import LiveFeed, Puller
from binlake.pump_service.pump.pull import NotNow, catch_up
from binlake.pump_service.pump.service import PumpService
from binlake.rpc import Call, RpcServer, Status
from binlake.rpc.frames import Code
from binlake.rpc.limits import SparingLog, choose_slot_to_free
from binlake.wire.blocks import PART_BYTES

log = SparingLog()

_READERS = 4
_PULLERS = 1000
_ALL_UNSENT_BYTES = 64 << 20
_GIVE_WAY = 5.0  # while writers are active, a pull works a sixth of the time
# seconds that a reader waits for a puller that takes nothing; and while others wait for a reader
_PATIENCE_S, _HURRIED_S = 0.2, 0.03
_TURN_S = 2.0  # seconds that a reader serves one puller before it serves another
_STALLED_S = 10.0
_LOOK_S = 1.0
_STOPPING = "the pump is stopping"


class Pulls:
    """All pullers of a pump. `begin` and the callbacks of calls run on the loop of `rpc`."""

    def __init__(self, service: PumpService, rpc: RpcServer) -> None:
        self.service = service
        self._rpc = rpc
        self._readers = ThreadPoolExecutor(_READERS, "pump-pull")
        self._changed = threading.Condition()
        self._pullers: dict[Puller, None] = {}  # oldest first
        self._queued = self._waiting = 0
        self._unsent = 0
        self._large = threading.Lock()
        self._tail = LiveFeed(self)
        self._checking = False
        service.on_end_pulls(self.stop)

    def begin(self, call: Call, cluster_id: int, after_ts: int) -> None:
        """Serve a call."""
        try:
            self.service.check_pull(cluster_id, after_ts)
        except BinlakeError as error:
            self._fail_call(call, error)
            return
        if len(self._pullers) >= _PULLERS and not self._tail.drop_farthest() and not self._free_slot(call):
            call.fail(
                Status.UNAVAILABLE, f"{len(self._pullers)} streams are open already, most of them from this address"
            )
            return
        if not self.service.serving:
            call.fail(Status.UNAVAILABLE, _STOPPING)
            return
        puller = Puller(call, after_ts)
        call.on_sent, call.on_end = partial(self._on_sent, puller), partial(self._on_ended, puller)
        self._pullers[puller] = None
        self._tail.start()
        self._enqueue(puller)
        if not self._checking:
            self._checking = True
            self._rpc.run_after(_LOOK_S, self._drop_stalled)

    def stop(self) -> None:
        """End every pull as UNAVAILABLE; from any thread, idempotent."""
        self._tail.stop()
        with self._changed:
            self._changed.notify_all()
        self._readers.shutdown(wait=False)
        self._rpc.run_on_loop(self._end_all)

    def close(self) -> None:
        """Like stop(), but returns only when no thread reads any more."""
        self.service.end_pulls()
        self._tail.close()
        self._readers.shutdown()

    def fail(self, puller: Puller, error: Exception) -> None:
        """End a pull; from any thread."""
        puller.well = False
        self._rpc.run_on_loop(lambda: self._fail_call(puller.call, error))

    def send(self, sent: list[tuple[Puller, list[bytes]]]) -> None:
        """Send frames; from any thread, in order."""
        with self._changed:
            for puller, frames in sent:
                if puller.alive:
                    size = sum(map(len, frames))
                    puller.unsent += size
                    self._unsent += size
        self._rpc.run_on_loop(lambda: _write(sent))

    def read_later(self, puller: Puller) -> None:
        """Read for the puller again as soon as it has taken what it was sent."""
        with self._changed:
            puller.parked = puller.has_enough
            if puller.parked:
                return
        self._enqueue(puller)

    def pace(self, worked_s: float) -> None:
        """Let writers go first: a pull at full speed would take the processor from them (MISSION S0-52)."""
        if self.service.writing:
            time.sleep(_GIVE_WAY * worked_s)

    # readers

    def _enqueue(self, puller: Puller) -> None:
        with self._changed:
            self._queued += 1
        with contextlib.suppress(RuntimeError):  # stopped: every pull gets an error
            self._readers.submit(self._read, puller)

    def _read(self, puller: Puller) -> None:
        with self._changed:
            self._queued -= 1
        try:
            while puller.alive and self.service.serving and self._catch_up(puller):
                if self._tail.join(puller):
                    return
        except BinlakeError as error:
            self.fail(puller, error)
        except Exception as error:
            log.exception("pull_broke")
            self.fail(puller, error)

    def _catch_up(self, puller: Puller) -> bool:
        """Send everything available; False when another turn continues later."""

        def is_gone() -> bool:
            return not (puller.alive and self.service.serving)

        if puller.large is not None and not self._send_large(puller, puller.large):
            return False
        reader = self.service.build_reader(in_parts=puller.parts)
        with contextlib.ExitStack() as turn_ends:
            reader.before_large = partial(self._wait_for_large_turn, puller, turn_ends)
            try:
                return self._send_all(puller, catch_up(reader, puller.last, is_gone)) and not is_gone()
            except NotNow:
                self._wait_for_room(puller)
                return False

    def _wait_for_large_turn(self, puller: Puller, turn_ends: contextlib.ExitStack, size: int) -> None:
        """Let one puller at a time read a large binlog, and only when it can be sent: it is in memory several times."""
        turn_ends.close()  # the previous large binlog has been sent
        if self._wait_until_room(puller, size) and self._large.acquire(timeout=_PATIENCE_S):
            turn_ends.callback(self._large.release)
            if self._wait_until_room(puller, size):
                return
        raise NotNow

    def _send_all(self, puller: Puller, batches: Iterator[tuple[int, TransactionBatch]]) -> bool:
        turn, worked = time.monotonic(), time.thread_time()
        for last, batch in batches:
            if batch.large is not None:
                puller.large = batch.large
                if not self._send_large(puller, batch.large):
                    return False
                worked = time.thread_time()
                continue
            for ts, frames in split_into_frames(batch, puller.call, blocks=puller.blocks):
                if not self._wait_until_room(puller, sum(map(len, frames))):
                    self._wait_for_room(puller)
                    return False
                self.send([(puller, frames)])
                puller.last = ts
            puller.last = max(puller.last, last)
            self.pace(time.thread_time() - worked)
            worked = time.thread_time()
            if self._queued and time.monotonic() - turn > _TURN_S:
                self.read_later(puller)
                return False
        return True

    def _send_large(self, puller: Puller, large: StoredTransaction) -> bool:
        """Send the next parts of `large`; False when another turn continues with those that are left."""
        turn, worked = time.monotonic(), time.thread_time()
        while not large.is_sent:
            if self._queued and time.monotonic() - turn > _TURN_S:
                self.read_later(puller)
                return False
            if not self._wait_until_room(puller, PART_BYTES):
                self._wait_for_room(puller)
                return False
            try:
                frames = large.read_next()
            except (WireError, LostRange) as error:
                self.service.note_pull_fault(puller.last, error)
                raise
            self.send([(puller, frames)])
            self.pace(time.thread_time() - worked)
            worked = time.thread_time()
        puller.last, puller.large = large.commit_ts, None
        return True

    def _wait_until_room(self, puller: Puller, size: int) -> bool:
        """Wait until this puller took what it was sent, and all others most of theirs; False if that takes too long."""

        def has_room() -> bool:
            ended = not (puller.alive and self.service.serving)
            return ended or (puller.unsent < puller.most_unsent and self._fits(puller, size))

        with self._changed:
            self._waiting += 1
            unsent = puller.unsent
            while not self._changed.wait_for(has_room, _HURRIED_S if self._queued else _PATIENCE_S):
                if puller.unsent >= unsent:
                    break
                unsent = puller.unsent
            self._waiting -= 1
            return puller.alive and has_room()

    def _fits(self, puller: Puller, size: int) -> bool:
        others = self._unsent - puller.unsent
        return others <= _ALL_UNSENT_BYTES >> 3 or self._unsent + size <= _ALL_UNSENT_BYTES

    def _wait_for_room(self, puller: Puller) -> None:
        if puller.has_enough:
            self.read_later(puller)
        else:
            # Other pullers use the room: they take their bytes soon, or are cut off.
            self._rpc.run_on_loop(lambda: self._rpc.run_after(_LOOK_S, lambda: self._enqueue(puller)))

    # callbacks of calls, on the loop

    def _on_sent(self, puller: Puller, size: int) -> None:
        with self._changed:
            puller.unsent -= size
            puller.taken += size
            self._unsent -= size
            puller.moved_at = time.perf_counter()
            again = puller.parked and not puller.has_enough
            if again:
                puller.parked = False
            if self._waiting:
                self._changed.notify_all()
        if again:
            self._enqueue(puller)

    def _on_ended(self, puller: Puller) -> None:
        with self._changed:
            puller.alive = puller.parked = False
            self._unsent -= puller.unsent
            puller.unsent = 0
            self._changed.notify_all()
        puller.call.on_sent = None
        self._pullers.pop(puller, None)
        self._tail.forget(puller)
        self.service.metrics.count_pull(time.perf_counter() - puller.began, well=puller.well)
        puller.call.fail(Status.CANCELLED, "the client does not read it")

    def _drop_stalled(self) -> None:
        """If many bytes are untaken, cut off pullers that have taken nothing for long."""
        now = time.perf_counter()
        stalled = [one for one in self._pullers if one.unsent and now - one.moved_at > _STALLED_S]
        stalled.sort(key=lambda one: one.moved_at)
        for puller in stalled:
            if self._unsent <= _ALL_UNSENT_BYTES >> 1:
                break
            log.warning("pull_cut_off", unsent=puller.unsent, seconds=round(now - puller.moved_at))
            puller.well = False
            puller.call.connection.reset(puller.call.id, Code.ENHANCE_YOUR_CALM)
        self._checking = bool(self._pullers)
        if self._checking:
            self._rpc.run_after(_LOOK_S, self._drop_stalled)

    def _free_slot(self, call: Call) -> bool:
        """To admit a call from another address, end the newest puller of the address that has the most."""
        slots = {puller: puller.call.connection.address for puller in self._pullers}
        loser = choose_slot_to_free(slots, call.connection.address)
        if loser is not None and loser.unsent:
            loser.call.connection.reset(loser.call.id, Code.ENHANCE_YOUR_CALM)
        elif loser is not None:
            loser.call.fail(
                Status.UNAVAILABLE, "closed to make room for other addresses: this address has the most streams"
            )
        return loser is not None

    def _end_all(self) -> None:
        for puller in list(self._pullers):
            puller.call.fail(Status.UNAVAILABLE, _STOPPING)

    @staticmethod
    def _fail_call(call: Call, error: Exception) -> None:
        log.error("pull_failed", error=str(error))
        text = str(error) if isinstance(error, BinlakeError) else f"{type(error).__name__}: {error}"
        call.fail(_choose_status(error), text)


def _write(sent: list[tuple[Puller, list[bytes]]]) -> None:
    for puller, frames in sent:
        for frame in frames:
            puller.call.send(frame)


def _choose_status(error: Exception) -> Status:
    if not isinstance(error, BinlakeError):
        return Status.UNKNOWN
    if isinstance(error, LostRange):
        return Status.OUT_OF_RANGE
    if isinstance(error, Transient):
        return Status.UNAVAILABLE
    return Status.FAILED_PRECONDITION if isinstance(error, ConfigError) else Status.DATA_LOSS
