"""A cluster in memory for the workload, and a separate consumer that computes the state from the binlogs."""

from __future__ import annotations

import itertools
import threading
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

from binlake.cluster.source.protocol import Committed, read_status
from binlake.errors import SourceUnavailable
from binlake.pump_service.statusport import StatusJobs, format_go_json
from binlake.rows.codec import decode_transaction
from binlake.rows.schema import DdlJob, SchemaState
from binlake.testkit.workload.command import build_state_lines
from binlake.testkit.workload.runner import Runner
from binlake.testkit.workload.source import LiveTransactions
from binlake.testkit.workload.spec import Spec
from binlake.wire import binlog_pb2 as pb


class CountingClock:
    """Advances a millisecond a call; notes which binlogs were acked when it gave a timestamp."""

    def __init__(self) -> None:
        self._ticks = itertools.count(1_795_000_000_000)

    def fetch_ts(self, count: int = 1) -> int:
        ticks = [next(self._ticks) for _ in range(count)]
        return ticks[-1] << 18


@dataclass
class MemoryClient:
    """Accepts everything in order of arrival; each `refuse_every`-th P finds no pump."""

    refuse_every: int = 0
    got: list[pb.Binlog] = field(default_factory=list)
    forgotten: list[int] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    asked: int = 0

    def write_prewrite(self, binlog: pb.Binlog) -> str:
        with self.lock:
            self.asked += 1
            if self.refuse_every and self.asked % self.refuse_every == 0:
                raise SourceUnavailable("no pump accepted the prewrite")
            self.got.append(binlog)
        return "pump1"

    def send_commit(self, binlog: pb.Binlog) -> str:
        with self.lock:
            self.got.append(binlog)
        return "pump1"

    send_rollback = send_commit

    def forget(self, start_ts: int) -> None:
        self.forgotten.append(start_ts)

    def types(self) -> Counter[int]:
        return Counter(binlog.tp for binlog in self.got)


@dataclass
class Run:
    """A finished run."""

    spec: Spec
    client: MemoryClient
    runner: Runner
    transactions: LiveTransactions
    jobs: list[dict[str, Any]]

    def states(self) -> list[dict[str, Any]]:
        """The expected end state without its timestamps."""
        lines = list(build_state_lines(self.spec.db, self.runner.catalog.tables, self.runner.tally.last_ts))
        return [{**line, "commit_ts": ""} for line in lines]


def run(spec: Spec, client: MemoryClient | None = None) -> Run:
    client, transactions, history = client or MemoryClient(), LiveTransactions(), StatusJobs()
    runner = Runner(spec, client, CountingClock().fetch_ts, transactions, history)
    runner._stopped.wait = lambda _=None: runner._stopped.is_set()  # type: ignore[method-assign, assignment]
    runner.run()
    return Run(spec, client, runner, transactions, history.list_finished_jobs(1 << 63))


def committed(done: Run) -> dict[int, pb.Binlog]:
    """commit_ts -> P, by its C, or for a P without C or R, by the answer of the status port."""
    prewrites = {binlog.start_ts: binlog for binlog in done.client.got if binlog.tp == pb.Prewrite}
    ends = {binlog.start_ts: binlog for binlog in done.client.got if binlog.tp != pb.Prewrite}
    by_commit_ts = {}
    for start_ts, prewrite in prewrites.items():
        if start_ts in ends:
            if ends[start_ts].tp == pb.Commit:
                by_commit_ts[ends[start_ts].commit_ts] = prewrite
            continue
        answer = read_status(format_go_json(done.transactions.answer(prewrite.prewrite_key, 0)), start_ts)
        if isinstance(answer, Committed):
            by_commit_ts[answer.commit_ts] = prewrite
    return dict(sorted(by_commit_ts.items()))


def replayed(done: Run) -> dict[str, list[tuple[str | None, ...]]]:
    """`db.table` -> rows, from the binlogs and jobs alone: decoded in commit order, applied one by one."""
    jobs = {job["id"]: DdlJob.from_dict(job) for job in done.jobs}
    schema, rows = SchemaState(), defaultdict[int, Counter[tuple[tuple[str, str | None], ...]]](Counter)
    for commit_ts, prewrite in committed(done).items():
        if prewrite.ddl_job_id:
            if prewrite.ddl_schema_state != 1:
                before, schema = schema, schema.apply(jobs[prewrite.ddl_job_id], commit_ts)
                _migrate(before, schema, rows)
            continue
        for change in decode_transaction(prewrite.SerializeToString(), commit_ts, prewrite.start_ts, schema):
            if change.before is not None:
                key = tuple(sorted(change.before.items()))
                assert rows[change.table_id][key] > 0, "a deleted row does not exist"
                rows[change.table_id][key] -= 1
            if change.after is not None:
                rows[change.table_id][tuple(sorted(change.after.items()))] += 1
    return {
        f"{table.db}.{table.name}": sorted(
            (tuple(dict(row)[column.name] for column in table.columns) for row in rows[table.id].elements()), key=str
        )
        for table in schema.list_tables()
        if table.db == done.spec.db
    }


def _migrate(before: SchemaState, after: SchemaState, rows: dict[int, Counter[Any]]) -> None:
    for table in after.list_tables():
        old = before.find_table(table.id)
        names = {column.name for column in table.columns}
        if old is None or names == {column.name for column in old.columns}:
            continue
        fill = {column.name: column.origin_default for column in table.columns}
        moved: Counter[Any] = Counter()
        for row, count in rows[table.id].items():
            kept = {name: value for name, value in row if name in names}
            moved[tuple(sorted({**fill, **kept}.items()))] += count
        rows[table.id] = moved
