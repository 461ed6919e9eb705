"""Outcome of each transaction of a capture: from its commit or rollback; for orphans, from the recorded outcomes.

Sources, in this order: a C in the capture; `outcomes.json`; `decoded.jsonl`, which holds every row change of every
committed transaction, so that an orphan with rows in it is committed and one without is not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from google.protobuf.message import DecodeError

from binlake.errors import WireError
from binlake.pump_service.statusport import PrewrittenTransaction
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
