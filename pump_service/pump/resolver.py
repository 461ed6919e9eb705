"""Resolving an orphan P: what became of its transaction is asked from the source, never guessed (hazards R-07).

Three answers: committed at a ts, rolled back, unknown. The first two become a C or an R in the value log, so the proof
outlives a restart and the source's own collection; unknown, or nobody to ask, blocks the watermark and is shown.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import httpx
import structlog

from binlake.errors import BinlakeError
from binlake.wire import binlog_pb2 as pb
from pump_service.pump.sorter import Entry
from pump_service.pump.storage import Storage

log = structlog.get_logger()

_ROLLBACK = 3  # type of a write record, tidb-binlog 10.5
_AT_ONCE = 64  # P asked about in one round


@dataclass(frozen=True)
class Committed:
    """The transaction is committed at `commit_ts`."""

    commit_ts: int


@dataclass(frozen=True)
class RolledBack:
    """The transaction is rolled back, with a record that proves it."""


@dataclass(frozen=True)
class Unknown:
    """Nothing proves either; `reason` is shown to people."""

    reason: str


Status = Committed | RolledBack | Unknown


class StatusSource(Protocol):
    """Who knows what became of a transaction."""

    def ask(self, start_ts: int, key: bytes) -> Status:
        """The status of transaction `start_ts` with primary key `key`; Unknown, not an error, when unreachable."""


class NoStatusSource:
    """Nobody to ask: every orphan P blocks until its C or R arrives."""

    def ask(self, start_ts: int, key: bytes) -> Status:
        """Always Unknown."""
        del start_ts, key
        return Unknown("no status source is configured (--status-url)")


class HttpStatusSource:
    """TiDB's status port, or whoever serves the same `/mvcc/hex/KEY` (tidb-binlog 10.5); the first proof wins."""

    def __init__(self, urls: Sequence[str], timeout_s: float = 5.0) -> None:
        self._urls = [url.rstrip("/") for url in urls]
        self._client = httpx.Client(timeout=timeout_s, trust_env=False)

    def ask(self, start_ts: int, key: bytes) -> Status:
        """Ask each url in turn."""
        if not key:
            return Unknown("its P has no prewrite_key to ask about")
        reasons = []
        for url in self._urls:
            status = self._ask_one(url, start_ts, key)
            if not isinstance(status, Unknown):
                return status
            reasons.append(f"{url}: {status.reason}")
        return Unknown("; ".join(reasons))

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _ask_one(self, url: str, start_ts: int, key: bytes) -> Status:
        try:
            answer = self._client.get(f"{url}/mvcc/hex/{key.hex()}")
        except httpx.HTTPError as error:
            return Unknown(f"unreachable ({error})")
        if answer.status_code != httpx.codes.OK:
            return Unknown(f"answered {answer.status_code}")
        return read_status(answer.text, start_ts)


def read_status(body: str, start_ts: int) -> Status:
    """What the JSON of `/mvcc/hex/KEY` says of `start_ts`. Pure; anything unexpected is Unknown."""
    try:
        info = _info(json.loads(body))
        writes = [write for write in info.get("writes") or [] if int(write.get("start_ts", 0)) == start_ts]
        locked = int((info.get("lock") or {}).get("start_ts", 0)) == start_ts
        if writes:
            return _of_write(writes[0])
    except (ValueError, TypeError, AttributeError) as error:
        return Unknown(f"unreadable answer ({error})")
    return Unknown("its lock is still there" if locked else "neither lock nor write record")


def _of_write(write: Mapping[str, Any]) -> Status:
    if int(write.get("type") or 0) == _ROLLBACK:
        return RolledBack()
    commit_ts = int(write.get("commit_ts", 0))
    return Committed(commit_ts) if commit_ts > 0 else Unknown("a write record without commit_ts")


def _info(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    # TiDB wraps it in "value" (seen on v7.5); older versions answer with "info" at the top.
    found = answer.get("value", answer).get("info", {})
    return found if isinstance(found, dict) else {}


@dataclass
class Resolver:
    """Asks about each P that waits for two rounds in a row (a round a second: tidb-binlog 2.5)."""

    storage: Storage
    source: StatusSource
    queries: int = 0
    blocked: str = ""
    _seen: set[int] = field(default_factory=set)

    def round(self) -> None:
        """Look once; `blocked` then says why the head P waits, empty when nothing waits for long."""
        waiting = self.storage.waiting(_AT_ONCE)
        patient = [entry for entry in waiting if entry.start_ts in self._seen]
        self._seen = {entry.start_ts for entry in waiting}
        reasons = [reason for reason in map(self._resolve, patient) if reason]
        self.blocked = reasons[0] if reasons else ""

    def _resolve(self, prewrite: Entry) -> str:
        self.queries += 1
        status = self.source.ask(prewrite.start_ts, prewrite.key)
        if isinstance(status, Unknown):
            return f"P start_ts={prewrite.start_ts} waits for its C or R: {status.reason}"
        end = _end_of(prewrite.start_ts, status)
        try:
            self.storage.append(end.SerializeToString()).result()
        except BinlakeError as error:
            return f"P start_ts={prewrite.start_ts}: its outcome cannot be stored: {error}"
        log.info("orphan_resolved", start_ts=prewrite.start_ts, commit_ts=end.commit_ts)
        return ""


def _end_of(start_ts: int, status: Committed | RolledBack) -> pb.Binlog:
    if isinstance(status, Committed):
        return pb.Binlog(tp=pb.Commit, start_ts=start_ts, commit_ts=status.commit_ts)
    return pb.Binlog(tp=pb.Rollback, start_ts=start_ts, commit_ts=0)
