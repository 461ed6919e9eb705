"""The interface between a source and the pipeline; any source that implements it can be replicated (DESIGN 5).

The outcome of a transaction can be read from TiDB's `/mvcc/hex/KEY` (tidb-binlog 10.5). Only a write record proves a
commit or rollback; age, no answer and unexpected answers prove nothing (hazards R-07).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

_ROLLBACK = 3

Job = Mapping[str, Any]
"""A DDL job as TiDB's JSON has it (tidb-binlog 1.13)."""


@dataclass(frozen=True)
class Committed:
    """Committed at `commit_ts`."""

    commit_ts: int


@dataclass(frozen=True)
class RolledBack:
    """Rolled back, with a record that proves it."""


@dataclass(frozen=True)
class Locked:
    """Undecided: its lock exists. `ttl_ms`: from the lock; 0 = the lock has none."""

    ttl_ms: int = 0


@dataclass(frozen=True)
class Unknown:
    """Neither outcome is proved; `reason` is for people."""

    reason: str


@dataclass(frozen=True)
class Absent(Unknown):
    """The source has neither a lock nor a write record: never written, or removed. Not a proof yet."""

    reason: str = "neither lock nor write record"


@dataclass(frozen=True)
class Unreachable(Unknown):
    """The server that has the answer could not be reached."""

    reason: str = "no answer"


Status = Committed | RolledBack | Locked | Unknown


def read_status(body: str, start_ts: int) -> Status:
    """The status of `start_ts` in the JSON of `/mvcc/hex/KEY`. Pure; anything unexpected is Unknown."""
    try:
        info = find_mvcc_info(json.loads(body))
        if info is None:
            return Unknown("the answer does not contain the key")
        writes = [write for write in info.get("writes") or [] if int(write.get("start_ts", 0)) == start_ts]
        if writes:
            return _parse_write_status(writes[0])
        if any(_has_rollback_flag(write, start_ts) for write in info.get("writes") or []):
            return RolledBack()
        lock = info.get("lock") or {}
        if int(lock.get("start_ts", 0)) == start_ts:
            return Locked(int(lock.get("ttl", 0)))
    except (ValueError, TypeError, AttributeError) as error:
        return Unknown(f"unreadable answer ({error})")
    return Absent()


def _parse_write_status(write: Mapping[str, Any]) -> Status:
    if int(write.get("type") or 0) == _ROLLBACK:
        return RolledBack()
    commit_ts = int(write.get("commit_ts", 0))
    return Committed(commit_ts) if commit_ts > 0 else Unknown("a write record without commit_ts")


def _has_rollback_flag(write: Mapping[str, Any], start_ts: int) -> bool:
    # A rollback record that would collide with another transaction's commit record is stored as a flag in that record.
    return int(write.get("commit_ts", 0)) == start_ts and bool(write.get("has_overlapped_rollback"))


def find_mvcc_info(answer: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The key's records in the answer; None if there are none, as in an answer with an error."""
    # v7.5 wraps it in "value"; older versions answer with "info" at the top.
    value = answer.get("value", answer)
    return None if value.get("error") or value.get("region_error") else value.get("info")


class JobHistory(Protocol):
    """Access to finished DDL jobs. Methods raise SourceUnavailable, WireError."""

    def fetch_page(self, below: int) -> list[dict[str, Any]]:
        """The newest jobs with id < `below` (0 = no limit), newest first; empty if there are none."""

    def fetch_by_id(self, ids: Collection[int]) -> dict[int, dict[str, Any]]:
        """The finished jobs among `ids`."""

    def fetch_running(self) -> list[dict[str, Any]] | None:
        """The unfinished jobs; None if unknown."""

    def close(self) -> None:
        """Close all connections."""


class Source(Protocol):
    """A source cluster."""

    def fetch_ts(self) -> int:
        """A fresh timestamp, above every commit_ts that exists so far. Raises SourceUnavailable."""

    def fetch_transaction_status(self, start_ts: int, key: bytes) -> Status:
        """The outcome of the transaction `start_ts` whose primary key is `key` (raw bytes, the prewrite_key).

        Raises SourceUnavailable. An answer without proof is Unknown, never RolledBack (hazards R-07).
        """

    def fetch_ddl_jobs(self, newer_than_job_id: int, started_by: int | None = None) -> Iterator[Job]:
        """Finished jobs with id > `newer_than_job_id`, newest first; with `started_by`, jobs with a higher start_ts are
        skipped, except for some. Raises SourceUnavailable, WireError."""

    def fetch_ddl_jobs_by_id(self, ids: Collection[int]) -> dict[int, Job]:
        """The finished jobs among `ids`; a missing one is unfinished or unknown."""
