"""The manual work that the capture tools do in an operator's place succeeds on a real MariaDB."""

from __future__ import annotations

from contextlib import closing

import pytest
from support.mariadb import MariaDb, rows
from support.windows import target_of
from support.workload import Workload, integer, text

from binlake.errors import TargetRefused
from binlake.rows.schema import DdlJob, WindowDdl
from binlake.target.session.session import TargetSession
from binlake.wire import binlog_pb2 as pb
from deploy.local.commitlog import CommitLog
from deploy.local.direct import DirectReplay
from deploy.local.handwork import Handworks

pytestmark = pytest.mark.mariadb

LATIN1 = {"charset": "latin1", "collate": "latin1_bin"}


def log_with_a_lost_default() -> CommitLog:
    """Log of ADD COLUMN b VARCHAR(9) CHARACTER SET latin1 DEFAULT x'f6', for which TiDB keeps U+FFFD; then two rows."""
    w = Workload()
    w.create_database("d")
    w.create_table("d", "t", [integer("id"), text("v", 9, **LATIN1)], ["id"])
    w.begin().insert("d", "t", id=1, v="ö").commit()
    w.add_column("d", "t", text("b", 9, default="\ufffd", **LATIN1))
    w.begin().insert("d", "t", id=2, v="o", b="\ufffd").commit()
    w.add_column("d", "t", integer("later"))
    w.begin().update("d", "t", {"id": "1", "v": "ö", "b": "\ufffd", "later": None}, later=7).commit()
    prewrites = {b.start_ts: b for b in w.logged if b.tp == pb.Prewrite}
    jobs = {job.id: job for job in map(DdlJob.from_dict, w.jobs)}
    log = CommitLog([], [], [])
    for commit in (b for b in w.logged if b.tp == pb.Commit):
        first, ts = prewrites[commit.start_ts], commit.commit_ts
        if first.ddl_job_id:
            log.ddls.append(WindowDdl(ts, commit.start_ts, first.ddl_job_id, 5, first.ddl_query.decode()))
            log.jobs.append((ts, jobs[first.ddl_job_id]))
        else:
            version = pb.PrewriteValue.FromString(first.prewrite_value).schema_version
            log.rows.append((ts, commit.start_ts, first.SerializeToString(), version))
    return log


def test_column_that_cannot_hold_its_default_is_created_by_ddl_replacement(mariadb: MariaDb) -> None:
    mariadb.wipe()
    log = log_with_a_lost_default()
    last = log.rows[-1][0]
    with closing(TargetSession(target_of(mariadb))) as session:
        replay = DirectReplay(log, session)
        replay.advance(last)
    assert rows(mariadb, "SELECT * FROM d.t ORDER BY id") == [(1, "ö", "\ufffd", 7), (2, "o", "\ufffd", None)]
    assert [text.partition(" by ddl-replacement: ")[2] for text in replay.applied.by_hand] == [
        "ALTER TABLE `t` ADD COLUMN `b` VARCHAR(9) DEFAULT '\ufffd'"
    ]


def test_ddl_stops_without_a_replacement(mariadb: MariaDb, monkeypatch: pytest.MonkeyPatch) -> None:
    mariadb.wipe()
    monkeypatch.setattr("deploy.local.direct.plan_handwork", lambda _: Handworks((), ()))
    log = log_with_a_lost_default()
    refusal = pytest.raises(TargetRefused, match=r"default of column b .* use ddl-replacement")
    with closing(TargetSession(target_of(mariadb))) as session, refusal:
        DirectReplay(log, session).advance(log.rows[-1][0])
