"""All user DDL of the captures, run in order on real servers: it is accepted and has the right result."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.mariadb import MariaDb
from support.windows import target_of

from binlake.ddl.ddls import plan_ddls
from binlake.ddl.definitions import LandedDdl
from binlake.dialect import map_ddl
from binlake.rows.schema import DdlJob, SchemaState, WindowDdl
from binlake.rules import Rules
from binlake.target.ddl.proof import judge, read_evidence
from binlake.target.definitions.definitions import compare_definitions, expect_after_ddl, read_definitions
from binlake.target.session.session import TargetSession
from binlake.testkit.captures.capture import Capture
from binlake.wire import binlog_pb2 as pb

CAPTURES = Path(__file__).resolve().parents[1] / "captures"


def ddls(capture: Capture) -> Iterator[LandedDdl]:
    """The DDLs that apply, with the definitions before and after."""
    binlogs = [pb.Binlog.FromString(payload) for payload in capture.read_binlogs()]
    logged = [
        WindowDdl(b.commit_ts, b.start_ts, b.ddl_job_id, b.ddl_schema_state, bytes(b.ddl_query).decode())
        for b in binlogs
        if b.ddl_job_id and b.tp == pb.Commit
    ]
    commit_ts = {b.job_id: b.commit_ts for b in logged if b.schema_state != 1}
    jobs = [DdlJob.parse(text) for text in capture.read_job_texts()]
    placed = [(commit_ts.get(job.id, job.finished_ts), job) for job in jobs]
    planned = plan_ddls(SchemaState(), logged, placed, Rules())
    return (row for row in planned if not row.reason)


@pytest.mark.mariadb
@pytest.mark.parametrize("name", ["bank", "keys", "shard", "shard_mixed", "sysbench_like"])
def test_every_ddl_runs_and_gives_the_expected_definitions(empty_server: MariaDb, name: str) -> None:
    target, dialect = target_of(empty_server), empty_server.name
    session = TargetSession(target)
    try:
        count = 0
        for row in ddls(Capture(CAPTURES / name)):
            found = map_ddl(row, dialect)
            assert found.sql, (row.query, found.reason)
            expected = expect_after_ddl(row.before, row.after, dialect)
            before = read_evidence(session, target, expected.names, expected)
            for statement in found.sql:
                session.execute(statement)
            assert (
                compare_definitions(expected, read_definitions(session, expected.names, dialect), indexes=True) == []
            ), row.query
            # after a restart at the intent, this decides whether the DDL has run
            truncated = row.query.upper().startswith("TRUNCATE")
            assert (
                judge(before, read_evidence(session, target, expected.names, expected), expected) == "after"
                or truncated
            )
            count += 1
        assert count > 5
    finally:
        session.close()
