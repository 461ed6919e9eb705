"""Resolving an orphan P: what became of its transaction is asked from the source, never guessed (hazards R-07).

Committed and rolled back become a C or an R in the value log, so the proof outlives a restart and the source's own
collection; everything else, and nobody to ask, blocks the watermark and is shown.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import structlog

from binlake.errors import BinlakeError, SourceUnavailable
from binlake.source import Committed, Locked, RolledBack, Status, Unknown
from binlake.wire import binlog_pb2 as pb
from pump_service.pump.sorter import Entry
from pump_service.pump.storage import Storage

log = structlog.get_logger()

_AT_ONCE = 64  # P asked about in one round


class StatusSource(Protocol):
    """Who knows what became of a transaction: the part of binlake.source.Source that a pump needs."""

    def transaction_status(self, start_ts: int, key: bytes) -> Status:
        """The status of transaction `start_ts` with primary key `key`. Raises SourceUnavailable."""


class NoStatusSource:
    """Nobody to ask: every orphan P blocks until its C or R arrives."""

    def transaction_status(self, start_ts: int, key: bytes) -> Status:
        """Always Unknown."""
        del start_ts, key
        return Unknown("no status source is configured (--status-url)")


@dataclass
class Resolver:
    """Asks about each P that waits for two rounds in a row (a round a second: tidb-binlog 2.5)."""

    storage: Storage
    source: StatusSource
    queries: int = 0
    blocked: str = ""
    _seen: set[int] = field(default_factory=set)

    def round(self) -> None:
        """Look once; `blocked` then says why the first P still waits, empty when nothing waits for long."""
        waiting = self.storage.waiting(_AT_ONCE)
        patient = [entry for entry in waiting if entry.start_ts in self._seen]
        self._seen = {entry.start_ts for entry in waiting}
        reasons = [reason for reason in map(self._resolve, patient) if reason]
        self.blocked = reasons[0] if reasons else ""

    def _resolve(self, prewrite: Entry) -> str:
        """Ask and store the outcome; why that was not possible, empty when it was."""
        self.queries += 1
        try:
            end = _end_of(prewrite.start_ts, self.source.transaction_status(prewrite.start_ts, prewrite.key))
            if isinstance(end, str):
                return f"P start_ts={prewrite.start_ts} waits for its C or R: {end}"
            self.storage.append(end.SerializeToString()).result()
        except SourceUnavailable as error:
            return f"P start_ts={prewrite.start_ts} waits for its C or R: {error}"
        except BinlakeError as error:
            return f"P start_ts={prewrite.start_ts}: its outcome cannot be stored: {error}"
        log.info("orphan_resolved", start_ts=prewrite.start_ts, commit_ts=end.commit_ts)
        return ""


def _end_of(start_ts: int, status: Status) -> pb.Binlog | str:
    """The binlog that ends the transaction, or why there is no proof of its end."""
    match status:
        case Committed(commit_ts):
            return pb.Binlog(tp=pb.Commit, start_ts=start_ts, commit_ts=commit_ts)
        case RolledBack():
            return pb.Binlog(tp=pb.Rollback, start_ts=start_ts, commit_ts=0)
        case Locked():
            return "its lock is still there"
        case Unknown(reason):
            return reason
