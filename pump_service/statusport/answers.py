"""The answers of a TiDB at a time `now`: pure functions that return the JSON text of a real status port.

Nothing at or after `now` has happened yet: a job is in the history once its FinishedTS has passed; a transaction shows
a lock from its start_ts, and a write record once its commit_ts has passed (tidb-binlog 10.3, 10.5).
"""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]
_ROLLBACK = 3
MAX_HISTORY = 1024
"""TiDB returns at most this many jobs at once."""


@dataclass(frozen=True, slots=True)
class PrewrittenTransaction:
    """One transaction, from its P. `commit_ts` 0 = rolled back; `orphan`: nobody wrote its C or R to a pump."""

    start_ts: int
    key: bytes
    commit_ts: int
    orphan: bool


def format_go_json(value: object, *, indent: bool = True) -> str:
    """JSON as Go prints it: one space of indent, `<`, `>`, `&`, U+2028 and U+2029 escaped."""
    layout: Json = {"indent": 1} if indent else {"separators": (",", ":")}
    text = json.dumps(value, ensure_ascii=False, **layout)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


class StatusJobs:
    """DDL jobs by id; thread-safe. Memory: the texts of the jobs."""

    def __init__(self, jobs: Iterable[Json] = ()) -> None:
        self._jobs = sorted(jobs, key=_get_job_id)

    def add(self, job: Json) -> None:
        """Add a finished job."""
        self._jobs = sorted([*self._jobs, job], key=_get_job_id)

    def list_finished_jobs(self, now: int, start_job_id: int = 0, limit: int = 0) -> list[Json]:
        """As `/ddl/history`: the newest `limit` first, from `start_job_id` downwards; 0, 0 = all, oldest first."""
        jobs = [job for job in self._jobs if int(job["binlog"]["FinishedTS"]) < now]
        if not limit and not start_job_id:
            return jobs
        below = [job for job in reversed(jobs) if not start_job_id or job["id"] <= start_job_id]
        return below[: limit or MAX_HISTORY]


def _get_job_id(job: Json) -> int:
    return int(job["id"])


def build_mvcc_body(key: bytes, info: Json, region: int = 1) -> Json:
    """The body of `/mvcc/hex/KEY`; `info`: lock, writes and values, as far as they exist."""
    return {"key": key.hex().upper(), "region_id": region, "value": {"info": info}}


def write_record(transaction: PrewrittenTransaction) -> Json:
    """The write record of a finished transaction."""
    if transaction.commit_ts:
        return {"start_ts": transaction.start_ts, "commit_ts": transaction.commit_ts}
    return {"type": _ROLLBACK, "start_ts": transaction.start_ts, "commit_ts": transaction.start_ts}


def lock_record(start_ts: int, key: bytes) -> Json:
    """The lock of a running transaction."""
    return {"start_ts": start_ts, "primary": base64.b64encode(key).decode()}


def build_status(meta: Json) -> Json:
    """The body of `/status`."""
    return {"connections": 0, "version": meta.get("version", ""), "git_hash": _parse_git_hash(meta)}


def build_info_all(meta: Json, host: str, port: int, started: int) -> Json:
    """The body of `/info/all`: one server, binlog on; `started` in Unix seconds."""
    server = str(uuid.uuid5(uuid.NAMESPACE_URL, f"binlake-capture-{meta.get('case', '')}-{meta.get('seed', '')}"))
    own = {
        "version": meta.get("version", ""),
        "git_hash": _parse_git_hash(meta),
        "ddl_id": server,
        "ip": host,
        "listening_port": 0,
        "status_port": port,
        "lease": "45s",
        "binlog_status": "On",
        "start_timestamp": started,
        "labels": {},
        "server_id": 0,
    }
    return {
        "servers_num": 1,
        "owner_id": server,
        "is_all_server_version_consistent": True,
        "all_servers_info": {server: own},
    }


def _parse_git_hash(meta: Json) -> str:
    lines = str(meta.get("tidb_version", "")).splitlines()
    commit = next((line.partition(": ")[2] for line in lines if line.startswith("Git Commit Hash")), "None")
    return commit[:12]
