"""The recorded TiDB of a capture: the outcome of each of its transactions, and the status port that tells it.

Outcomes come from, in this order: a C in the capture; `outcomes.json`; `decoded.jsonl`, which holds every row change of
every committed transaction, so that an orphan with rows in it is committed and one without is not.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence

from google.protobuf.message import DecodeError

from binlake.errors import WireError
from binlake.pump_service.statusport import (
    Json,
    PrewrittenTransaction,
    StatusJobs,
    StatusServer,
    build_mvcc_body,
    lock_record,
    write_record,
)
from binlake.rpc import Tls
from binlake.testkit.captures.capture import Capture
from binlake.wire import binlog_pb2 as pb


class Outcomes:
    """The transactions of a capture by start_ts and by primary key."""

    def __init__(self, transactions: Iterable[PrewrittenTransaction]) -> None:
        self.by_start = {one.start_ts: one for one in transactions}
        self.by_key: dict[bytes, list[PrewrittenTransaction]] = {}
        for one in sorted(self.by_start.values(), key=lambda transaction: transaction.start_ts):
            self.by_key.setdefault(one.key, []).append(one)

    @classmethod
    def of(cls, capture: Capture) -> Outcomes:
        """Read the capture. Raises WireError."""
        keys, commits, ended = _read_binlogs(capture)
        orphans = keys.keys() - ended
        truth = _read_recorded(capture, orphans)
        return cls(
            PrewrittenTransaction(start, key, commits.get(start) or truth.get(start, 0), start in orphans)
            for start, key in keys.items()
        )

    def look_up_orphan_commit_ts(self, start_ts: int) -> int:
        """The true commit_ts of an orphan; 0 for a rolled-back one and for every transaction with a C or R."""
        transaction = self.by_start.get(start_ts)
        return transaction.commit_ts if transaction is not None and transaction.orphan else 0


def _read_binlogs(capture: Capture) -> tuple[dict[int, bytes], dict[int, int], set[int]]:
    keys: dict[int, bytes] = {}
    commits: dict[int, int] = {}
    ended: set[int] = set()
    for index, payload in enumerate(capture.read_binlogs()):
        try:
            binlog = pb.Binlog.FromString(payload)
        except DecodeError as error:
            where = {"capture": capture.name, "binlog": index}
            raise WireError(f"a payload is not a binlog: {error}", where=where) from error
        if binlog.tp == pb.Prewrite:
            keys[binlog.start_ts] = binlog.prewrite_key
            continue
        ended.add(binlog.start_ts)
        if binlog.tp == pb.Commit:
            commits[binlog.start_ts] = binlog.commit_ts
    return keys, commits, ended


def _read_recorded(capture: Capture, orphans: set[int]) -> Mapping[int, int]:
    """commit_ts by start_ts of the committed orphans."""
    if not orphans:
        return {}
    commits = {int(outcome["start_ts"]): int(outcome.get("commit_ts", 0)) for outcome in capture.read_outcomes() or ()}
    if orphans <= commits.keys() or not capture.has("decoded.jsonl"):
        return commits
    unknown = orphans - commits.keys()
    rows = ((int(row["start_ts"]), int(row["commit_ts"])) for row in capture.read_decoded())
    return {**commits, **{start: commit for start, commit in rows if start in unknown}}


def build_status_server(
    capture: Capture,
    outcomes: Outcomes,
    now: Callable[[], int],
    addr: str = "127.0.0.1:0",
    *,
    tls: Tls | None = None,
) -> StatusServer:
    """The status port of a recorded TiDB as of `now()`. Raises ConfigError, as StatusServer does."""
    return StatusServer(
        capture.meta, StatusJobs(capture.read_jobs()), RecordedMvcc.of(capture, outcomes), now, addr, tls=tls
    )


class RecordedMvcc:
    """Locks and write records of the primary keys in a capture.

    If the capture recorded a real answer for a key, its entries (with values) are used; the rest is derived from the
    binlogs.
    """

    def __init__(self, outcomes: Outcomes, recorded: Mapping[str, Sequence[Json]]) -> None:
        self._outcomes = outcomes
        self._recorded = recorded

    @classmethod
    def of(cls, capture: Capture, outcomes: Outcomes) -> RecordedMvcc:
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
