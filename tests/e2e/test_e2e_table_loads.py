"""Tables that come later, through pumps and windows: target, source and mirrors are equal, and the log never stops.

(Decision 148.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from support.feeding import FedCluster, build_three_tables, contents, mixed_transactions
from support.mariadb import MariaDb, execute, mariadb_in_memory, rows
from test_e2e_column_load import run_all
from test_e2e_window import toml

from binlake.cli import run
from binlake.lake.paths import LakePaths
from binlake.pump_service.feeder.snapshot import tableround
from binlake.spark_jobs.job.context import StageContext

pytestmark = [pytest.mark.mariadb, pytest.mark.e2e]
COLUMNS = {"t": ["id", "u", "v"], "log": ["n", "what"], "other": ["id", "v"]}


@pytest.fixture(scope="module")
def server() -> Iterator[MariaDb]:
    with mariadb_in_memory(MariaDb.list_source_options()) as made:
        yield made


@pytest.fixture
def cluster(server: MariaDb, mariadb: MariaDb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FedCluster]:
    """A source of three tables; two of them are left out at first."""
    monkeypatch.setattr(tableround, "ROUND_S", 0.0)
    build_three_tables(server, mariadb, rows=900)
    with FedCluster(tmp_path, server, [describe_source(server, "fed.t", "fed.log")]) as made:
        made.start_feeder()
        yield made


def describe_source(server: MariaDb, *ignored: str) -> dict[str, Any]:
    snapshot = {"chunk-rows": 150, "threads": 2}
    source = {"name": "shard-1", "host": server.host, "port": server.port, "snapshot": snapshot}
    return {**source, "ignore-tables": list(ignored)}


def is_loaded(tables: int) -> Callable[[dict[str, Any]], bool]:
    """Whether a load of so many tables is done."""

    def look(status: dict[str, Any]) -> bool:
        loads = [one["load"] for one in status["sources"] if "load" in one]
        return any((load["state"], load["tables"]) == ("done", tables) for load in loads)

    return look


def require_equal(ctx: StageContext, server: MariaDb, target: MariaDb) -> None:
    """Target, source and mirrors have the same rows."""
    assert contents(target, "fed") == contents(server, "fed")
    for table, columns in COLUMNS.items():
        mirror = DeltaTable(LakePaths.of(ctx.replication).locate_mirror("fed", table)).to_pyarrow_table(columns=columns)
        found = Counter(tuple(row.values()) for row in mirror.to_pylist())
        assert found == Counter(rows(server, f"SELECT {', '.join(columns)} FROM fed.{table}"))


def test_tables_that_were_left_out_and_a_lost_one_reach_target_and_mirrors(
    cluster: FedCluster, server: MariaDb, mariadb: MariaDb, target: dict[str, Any], tmp_path: Path
) -> None:
    # S4-24 R-34 U-16
    sections = {"target": target, "mirror": {"enabled": True}}
    run_all(cluster, **sections)
    assert contents(mariadb, "fed").keys() == {"other"}
    # The first one: `ignore-tables` no longer names the tables.
    cluster.stop_feeder()
    cluster.sources = [describe_source(server)]
    with server.connect() as link:
        mixed_transactions(link, "fed", 1, 15)
        cluster.start_feeder()
        mixed_transactions(link, "fed", 2, 30)
        loaded = cluster.until(is_loaded(2))["sources"][0]
    assert (loaded["load"]["tables_done"], loaded["state"], loaded["trouble"]) == (2, "reading", "")
    cluster.follow(server)
    require_equal(run_all(cluster, **sections), server, mariadb)
    # The second one: somebody damaged tables at the target, and one was set aside. They are loaded again while windows
    # run.
    execute(mariadb, "DELETE FROM fed.other WHERE id % 2", "DELETE FROM fed.t WHERE id % 2")
    file = tmp_path / "fed.toml"
    values = cluster.replication(**sections).model_dump(mode="json", by_alias=True, exclude_none=True)
    file.write_text(toml(values), encoding="utf-8")
    table = ["--replication", str(file), "--table", "fed.other"]
    assert run(["table", "aside", *table]) == 0
    words = ["--config", str(cluster.write_settings()), "--source", "shard-1"]
    assert run(["feeder", "load-table", *words, "--table", "fed.other", "--table", "fed.t"]) == 0
    execute(server, "UPDATE fed.other SET v = v + 1 WHERE id % 3 = 0", "DELETE FROM fed.other WHERE id % 7 = 0")
    cluster.until(lambda status: "fed.other" in status["sources"][0]["load"]["by_table"] and is_loaded(2)(status))
    execute(server, "UPDATE fed.other SET v = v + 1 WHERE id % 5 = 0")
    cluster.follow(server)
    ctx = run_all(cluster, **sections)
    assert contents(mariadb, "fed")["t"] == contents(server, "fed")["t"]
    assert contents(mariadb, "fed")["other"] != contents(server, "fed")["other"]
    assert run(["table", "back", *table]) == 0
    require_equal(ctx, server, mariadb)
