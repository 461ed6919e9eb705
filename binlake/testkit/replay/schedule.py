"""The steps of a replay in order of arrival, and the bound below which the clock must stay.

The rule (DESIGN 5): every timestamp that PD gives is below the least commit_ts not yet acked. Arrival order is not
commit order, so this minimum covers the whole rest of the capture. The rule keeps the watermark correct (tidb-binlog
2.5): a fake at F is logged with F < bound <= commit_ts of every transaction whose P is not acked yet, so a P cannot
follow a fake at or above its commit_ts.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from binlake import tso
from binlake.errors import WireError
from binlake.testkit.captures.capture import Capture
from binlake.testkit.replay.outcomes import Outcomes
from binlake.wire import binlog_pb2 as pb


@dataclass(frozen=True, slots=True)
class ReplayStep:
    """One binlog of the capture. `needs`: how many prewrites must be acked before it is written (0 for a prewrite);
    `holds`: the commit_ts that the clock must not reach until this step is acked, 0 = none."""

    index: int
    kind: int
    start_ts: int
    commit_ts: int
    needs: int
    holds: int

    @property
    def is_prewrite(self) -> bool:
        """True for a P."""
        return self.kind == pb.Prewrite


class ReplaySchedule:
    """The steps of a capture; thread-safe. Memory: some 100 bytes a binlog, no payloads.

    A C or R waits for every P that arrived before it: its own P, and each whose commit_ts may be below its own (hazards
    R-09: otherwise a commit_ts would be logged before a P that commits below it).
    """

    def __init__(self, steps: Iterable[ReplayStep]) -> None:
        self.steps = tuple(steps)
        self._lock = threading.Lock()
        self._holds = sorted((step.holds, step.index) for step in self.steps if step.holds)
        self._next = 0
        self._acked = bytearray(len(self.steps))
        self._prewrites = [step.index for step in self.steps if step.is_prewrite]
        self._prefix = 0

    @classmethod
    def of(cls, capture: Capture, outcomes: Outcomes) -> ReplaySchedule:
        """Read the capture once. Raises WireError for damage and for a C or R without its P."""
        return cls(_read_steps(capture, outcomes))

    @property
    def first_bound(self) -> int:
        """The least commit_ts of the capture; MAX_TS when it has none."""
        return self._holds[0][0] if self._holds else tso.MAX_TS

    @property
    def end(self) -> int:
        """A timestamp above all of the capture: the clock advances from here, and repeats none of the capture's."""
        return 1 + max((max(step.start_ts, step.commit_ts, step.holds) for step in self.steps), default=0)

    @property
    def transactions(self) -> int:
        """The number of different commit_ts in the capture."""
        return len({hold for hold, _ in self._holds})

    def compute_bound(self) -> int:
        """The least commit_ts not yet acked; MAX_TS when all are. Never decreases."""
        with self._lock:
            while self._next < len(self._holds) and self._acked[self._holds[self._next][1]]:
                self._next += 1
            return self._holds[self._next][0] if self._next < len(self._holds) else tso.MAX_TS

    def ack(self, step: ReplayStep) -> None:
        """Record that `step` is durable on a pump."""
        with self._lock:
            self._acked[step.index] = 1
            while self._prefix < len(self._prewrites) and self._acked[self._prewrites[self._prefix]]:
                self._prefix += 1

    def may_write(self, step: ReplayStep) -> bool:
        """Whether everything that must be durable before `step` is durable."""
        with self._lock:
            return self._prefix >= step.needs


def _read_steps(capture: Capture, outcomes: Outcomes) -> Iterable[ReplayStep]:
    prewrites = 0
    known: set[int] = set()
    for index, payload in enumerate(capture.read_binlogs()):
        binlog = parse_binlog(capture, index, payload)
        start = binlog.start_ts
        if binlog.tp == pb.Prewrite:
            prewrites += 1
            known.add(start)
            # The pump itself writes an orphan's C after asking the source; until then its P holds the clock.
            yield ReplayStep(index, binlog.tp, start, 0, 0, outcomes.look_up_orphan_commit_ts(start))
        elif start not in known:
            where = {"capture": capture.name, "binlog": index, "start_ts": start}
            raise WireError("a commit or rollback comes before its prewrite", where=where)
        else:
            held = binlog.commit_ts if binlog.tp == pb.Commit else 0
            yield ReplayStep(index, binlog.tp, start, binlog.commit_ts, prewrites, held)


def parse_binlog(capture: Capture, index: int, payload: bytes) -> pb.Binlog:
    """The binlog at `index`. Raises WireError."""
    try:
        binlog = pb.Binlog.FromString(payload)
    except DecodeError as error:
        where = {"capture": capture.name, "binlog": index}
        raise WireError(f"a payload is not a binlog: {error}", where=where) from error
    return binlog
