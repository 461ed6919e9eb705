"""A capture in commit order, without a pump: what every consumer must see, derived only from the recorded binlogs."""

from __future__ import annotations

from dataclasses import dataclass

from binlake.ddl.ddls import build_window_schemas, plan_ddls
from binlake.ddl.definitions import LandedDdl
from binlake.rows.codec import MutationBatch
from binlake.rows.codec.secondwrites import may_be_twice
from binlake.rows.schema import DdlJob, SchemaState, WindowDdl
from binlake.rules import Rules
from binlake.testkit.captures.capture import Capture
from binlake.testkit.replay.recorded import Outcomes
from binlake.wire import binlog_pb2 as pb

RULES = Rules()


@dataclass(frozen=True)
class CommitLog:
    """A capture in commit order: `rows` are (commit_ts, start_ts, payload, schema_version), `ddls` its DDL binlogs,
    `jobs` (commit_ts, job) by schema version."""

    rows: list[tuple[int, int, bytes, int]]
    ddls: list[WindowDdl]
    jobs: list[tuple[int, DdlJob]]

    @property
    def first_ts(self) -> int:
        """commit_ts of the first row change or DDL."""
        return min([row[0] for row in self.rows[:1]] + [ddl.commit_ts for ddl in self.ddls[:1]])

    @property
    def last_ts(self) -> int:
        """commit_ts of the last row change or DDL."""
        return max([row[0] for row in self.rows[-1:]] + [ddl.commit_ts for ddl in self.ddls[-1:]])


def read_log(capture: Capture) -> CommitLog:
    """Pair prewrite and commit binlogs; an orphan gets the outcome recorded in the capture."""
    prewrites: dict[int, pb.Binlog] = {}
    commits: dict[int, int] = {}
    schema_state: dict[int, int] = {}
    for payload in capture.read_binlogs():
        message = pb.Binlog.FromString(payload)
        if message.tp == pb.Prewrite:
            prewrites[message.start_ts] = message
        elif message.tp == pb.Commit:
            commits[message.start_ts] = message.commit_ts
            schema_state[message.start_ts] = message.ddl_schema_state
    outcomes = Outcomes.of(capture)
    rows, ddls = [], []
    for start_ts, message in prewrites.items():
        commit_ts = commits.get(start_ts) or outcomes.look_up_orphan_commit_ts(start_ts)
        if commit_ts and message.ddl_job_id:
            query = message.ddl_query.decode()
            ddls.append(WindowDdl(commit_ts, start_ts, message.ddl_job_id, schema_state[start_ts], query))
        elif commit_ts:
            version = pb.PrewriteValue.FromString(message.prewrite_value).schema_version
            rows.append((commit_ts, start_ts, message.SerializeToString(), version))
    ddls.sort(key=lambda ddl: ddl.commit_ts)
    places = {ddl.job_id: ddl.commit_ts for ddl in ddls if ddl.schema_state != 1}
    jobs = [DdlJob.parse(text) for text in capture.read_job_texts()]
    return CommitLog(sorted(rows), ddls, [(places.get(job.id, job.finished_ts), job) for job in jobs])


def find_tables_in_doubt(log: CommitLog) -> set[str]:
    """`db.table` of tables for which it is uncertain which changes were logged twice (`source.second-writes`)."""
    schemas = build_window_schemas(SchemaState(), log.ddls, log.jobs)
    batch = MutationBatch(second_writes="once")
    for commit_ts, start_ts, payload, version in log.rows:
        value = pb.PrewriteValue.FromString(pb.Binlog.FromString(payload).prewrite_value)
        tables = [schemas.find_schema_at(commit_ts).find_table(mutation.table_id) for mutation in value.mutations]
        if any(table is not None and may_be_twice(table, version) for table in tables):
            batch.add(payload, commit_ts, start_ts, schemas.find_schema_at(commit_ts))
    return set(batch.stats.taken_once)


def plan_ddl(log: CommitLog) -> list[LandedDdl]:
    """All DDL of a capture, as one window plans them."""
    return plan_ddls(SchemaState(), log.ddls, log.jobs, RULES)
