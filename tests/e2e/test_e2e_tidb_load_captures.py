"""Recorded TiDB clusters loaded in the middle of the recording, then followed to its end: equal at both points.

The SQL side is a MariaDB that was brought to the recorded state and compared with it (support.tidb_double).
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from support.mariadb import MariaDb
from support.tidb_double import Snapshots, write_history
from support.windows import target_of

from binlake.config import Replication
from binlake.spark_jobs.commands.bootstrap import load_tidb
from binlake.spark_jobs.job.context import StageContext
from binlake.spark_jobs.job.runner import run_window
from binlake.target.session.session import TargetSession
from binlake.testkit.captures import compare_state, connect, read_expected_states
from binlake.testkit.captures.capture import Capture, StateAt
from deploy.local.cluster import CaptureCluster, run_capture_cluster
from deploy.local.commitlog import find_tables_in_doubt, plan_ddl, read_log
from deploy.local.direct import DirectReplay
from deploy.local.handwork import plan_handwork

pytestmark = [pytest.mark.mariadb, pytest.mark.e2e]

CAPTURES = Path(__file__).parent.parent / "captures"


def no_spark() -> SparkSession:
    raise AssertionError("no Spark is needed")


def require_equal(capture: Capture, state: StateAt, server: MariaDb) -> None:
    with closing(connect(server.host, server.port, server.user, server.password)) as link:
        found = compare_state(state, link, new_collation=bool(capture.meta.get("new_collation", True)))
    assert found.equal, f"{state.step}: {found.first_difference}"


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("types_all", "random_rows"),
        *(pytest.param(*one, marks=pytest.mark.soak) for one in (
            ("keys", "random_0"), ("keys_oldcoll", "random_1"), ("partition_gen", "round_2"), ("bank", "initial"),
        )),
    ],
)  # fmt: skip
def test_capture_is_loaded_in_the_middle_and_followed_to_its_end(
    name: str, step: str, mariadb: MariaDb, second_mariadb: MariaDb, tmp_path: Path
) -> None:  # S4-02 S4-24 S0-01 R-34
    capture = Capture(CAPTURES / name)
    states = list(read_expected_states(capture))
    base = next(state for state in states if state.step == step)
    for server in (mariadb, second_mariadb):
        server.wipe()
    fill(capture, base, second_mariadb)
    with run_capture_cluster(capture, tmp_path, pumps=1) as cluster, Snapshots(second_mariadb) as sql:
        ctx = StageContext(replication(capture, cluster, sql, mariadb, tmp_path), "test", no_spark)
        done = load_tidb(ctx, "applied", lambda _: None, base.commit_ts)
        assert set(sql.asked) == {str(base.commit_ts)}
        assert done.loads[0].rows == sum(len(table.get("rows") or ()) for table in base.contents)
        require_equal(capture, base, mariadb)
        while (ctx.windows.find_landed_ts() or 0) < states[-1].commit_ts:
            run_window(ctx)
        require_equal(capture, states[-1], mariadb)


def fill(capture: Capture, base: StateAt, server: MariaDb) -> None:
    """Bring the SQL side to the state, with the whole DDL history, and check that it equals the state."""
    log = read_log(capture)
    hands = plan_handwork(plan_ddl(log), capture.read_states(), find_tables_in_doubt(log))
    with closing(TargetSession(target_of(server))) as session:
        collation = bool(capture.meta.get("new_collation", True))
        DirectReplay(log, session, hands, new_collation=collation).advance(base.commit_ts)
    require_equal(capture, base, server)
    write_history(server, capture.read_jobs())


def replication(
    capture: Capture, cluster: CaptureCluster, sql: Snapshots, target: MariaDb, folder: Path
) -> Replication:
    settings: dict[str, Any] = {
        "name": "captures",
        "source": {
            "pd-urls": [cluster.pd_url], "status-url": cluster.status_url, "cluster-id": str(cluster.cluster_id),
            "new-collation": bool(capture.meta.get("new_collation", True)),
            "sql": sql.sql(), "snapshot": {"threads": 2, "chunk-rows": 100},
        },
        "lake": {"path": str(folder / "lake")},
        "target": {"db-type": target.name, "host": target.host, "port": target.port, "user": target.user},
        "mirror": {"enabled": False},
    }  # fmt: skip
    return Replication.model_validate(settings)
