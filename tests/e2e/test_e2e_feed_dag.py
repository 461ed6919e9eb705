"""A feed whose registry refuses a schema, in the DAG itself: real stages, Kafka, registry and target.

It takes too long for every run of CI, which tests the stages with a real registry
(tests/spark_jobs/test_feed_states.py), and the DAG with scripted stages (tests/dags/test_sync_feeds.py).
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.airflow_home import migrated_home, private_home
from support.live import LiveSource
from support.mariadb import MariaDb, rows
from support.topics import read_topic
from support.workload import integer
from test_e2e_window import toml

from binlake.feed.state import read_state, record_resume
from binlake.lake.paths import LakePaths
from binlake.lake.windowlog import WindowLog

if TYPE_CHECKING:
    from deploy.local.apicurio import Apicurio
    from deploy.local.kafka import KafkaBroker

private_home()

pytestmark = [pytest.mark.mariadb, pytest.mark.airflow, pytest.mark.e2e, pytest.mark.soak]


@pytest.fixture(scope="module")
def airflow_db() -> None:
    """A migrated metadata database."""
    migrated_home()


@pytest.fixture
def replication(source: LiveSource, target: dict[str, Any], kafka: KafkaBroker, schema_registry: Apicurio) -> Any:
    """A replication with a SQL sink and a feed."""
    uri = f"kafka://{kafka.address}/t?protocol=avro"
    feed = {"name": "a", "sink-uri": uri, "schema-registry": schema_registry.url,
            "dispatchers": [{"matcher": ["*.*"], "topic": "e2e.{schema}.{table}"}]}  # fmt: skip
    schema_registry.set_compatibility("BACKWARD")
    layout = {"layout": "stages", "engine": "submit", "schedule": "", "retries": 0, "wait-s": 0}
    return source.replication(target=target, mirror={"enabled": False}, airflow=layout, feed=[feed])


@pytest.fixture
def dag(replication: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, airflow_db: None) -> Any:
    """Its DAG, with one task per stage; nothing in it may need Spark."""
    from binlake_airflow.dags.factory import build_dag

    del airflow_db
    folder = tmp_path / "replications"
    folder.mkdir()
    (folder / "live.toml").write_text(toml(replication.model_dump(mode="json", by_alias=True, exclude_none=True)))
    monkeypatch.setenv("BINLAKE_REPLICATIONS", str(folder))
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "local[1]"}))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    return build_dag(folder / "live.toml")


def test_refused_schema_fails_the_feeds_task_once_and_resume_continues_from_there(
    dag: Any, source: LiveSource, replication: Any, mariadb: MariaDb, kafka: KafkaBroker, schema_registry: Apicurio
) -> None:
    # S2-38, S2-39, DESIGN 3.12
    workload, log = source.workload, WindowLog(LakePaths.of(replication))

    def run() -> tuple[str, dict[str, str]]:
        source.settle()
        done = dag.test()
        return str(done.state), {ti.task_id: str(ti.state) for ti in done.get_task_instances()}

    def sent() -> int:
        return len(read_topic(kafka.address, "e2e.fd.a"))

    def applied() -> list[int]:
        return [number for (number,) in rows(mariadb, "SELECT id FROM fd.a ORDER BY id")]

    workload.create_database("fd")
    workload.create_table("fd", "a", [integer("id")], ["id"])
    workload.begin().insert("fd", "a", id=1).commit()
    workload.add_column("fd", "a", integer("z", not_null=True))
    workload.begin().insert("fd", "a", id=2, z=0).commit()
    state, tasks = run()
    assert (state, tasks["publish-a"]) == ("failed", "failed")
    assert (tasks["finalize"], tasks["encode-a"]) == ("success", "success")
    assert (applied(), sent()) == ([1, 2], 1)
    stands = read_state(log, "a")
    assert stands.error is not None
    assert (stands.state, stands.error.where["table"]) == ("error", "fd.a")
    # The next window leaves the feed out, and says why.
    workload.begin().insert("fd", "a", id=3, z=0).commit()
    state, tasks = run()
    assert (state, tasks["encode-a"], tasks["publish-a"]) == ("success", "success", "skipped")
    assert (tasks["finalize"], applied(), sent()) == ("success", [1, 2, 3], 1)
    # After it is resumed, the feed sends everything that it missed.
    schema_registry.set_compatibility("NONE")
    record_resume(log, "a", reason="the subject takes it now")
    workload.begin().insert("fd", "a", id=4, z=0).commit()
    state, tasks = run()
    assert (state, tasks["publish-a"]) == ("success", "success")
    assert (applied(), sent()) == ([1, 2, 3, 4], 4)
