"""The answers of the capture's TiDB at a time `now`: pure functions that return the JSON text of a real status port.

Nothing at or after `now` has happened yet: a job is in the history once its FinishedTS has passed; a transaction shows
a lock from its start_ts, and a write record once its commit_ts has passed (tidb-binlog 10.3, 10.5).
"""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from binlake.compare.capture import Capture
from binlake.pump_service.replay.outcomes import Outcomes, Transaction

Json = dict[str, Any]
_ROLLBACK = 3
MAX_HISTORY = 1024
"""TiDB returns at most this many jobs at once."""


def format_go_json(value: object, *, indent: bool = True) -> str:
    """JSON as Go prints it: one space of indent, `<`, `>`, `&`, U+2028 and U+2029 escaped."""
    layout: Json = {"indent": 1} if indent else {"separators": (",", ":")}
    text = json.dumps(value, ensure_ascii=False, **layout)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


class History:
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


class Mvcc:
    """Locks and write records of the primary keys in a capture.

    If the capture recorded a real answer for a key, its entries (with values) are used; the rest is derived from the
    binlogs.
    """

    def __init__(self, outcomes: Outcomes, recorded: Mapping[str, Sequence[Json]]) -> None:
        self._outcomes = outcomes
        self._recorded = recorded

    @classmethod
    def of(cls, capture: Capture, outcomes: Outcomes) -> Mvcc:
        """Read the recorded answers in `http/`."""
        recorded: dict[str, list[Json]] = {}
        for answer in capture.read_http_answers():
            if answer["path"].startswith("/mvcc/hex/") and answer["status"] == 200:
                key = answer["path"].removeprefix("/mvcc/hex/").lower()
                recorded.setdefault(key, []).append(json.loads(answer["body"]))
        return cls(outcomes, recorded)

    def answer(self, key: bytes, now: int) -> Json:
        """The body of `/mvcc/hex/KEY`."""
        recorded = self._recorded.get(key.hex(), ())
        transactions = self._outcomes.by_key.get(key, [])
        writes = {write["start_ts"]: write for write in map(write_record, transactions)}
        values: dict[int, Json] = {}
        locks: dict[int, Json] = {}
        for then in (body["value"]["info"] for body in recorded):
            writes.update((write["start_ts"], write) for write in then.get("writes", ()))
            values.update((value["start_ts"], value) for value in then.get("values", ()))
            if "lock" in then:
                locks[then["lock"]["start_ts"]] = then["lock"]
        shown = sorted((w for w in writes.values() if w["commit_ts"] < now), key=lambda write: -int(write["commit_ts"]))
        undecided = [t for t in transactions if t.commit_ts >= now > t.start_ts]
        info: Json = {}
        if undecided:
            info["lock"] = locks.get(undecided[0].start_ts) or lock_record(undecided[0].start_ts, key)
        if shown:
            info["writes"] = shown
        if shown_values := [values[write["start_ts"]] for write in shown if write["start_ts"] in values]:
            info["values"] = shown_values
        region = recorded[0]["region_id"] if recorded else 1
        return build_mvcc_body(key, info, region)


def build_mvcc_body(key: bytes, info: Json, region: int = 1) -> Json:
    """The body of `/mvcc/hex/KEY`; `info`: lock, writes and values, as far as they exist."""
    return {"key": key.hex().upper(), "region_id": region, "value": {"info": info}}


def write_record(transaction: Transaction) -> Json:
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
