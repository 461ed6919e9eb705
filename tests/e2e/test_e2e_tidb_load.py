"""A TiDB source with a history: its tables are read by SQL as of one commit_ts, then its binlogs; equal at the end.

The SQL side is a MariaDB without writers that holds the source's rows (support.tidb_double); pumps, windows and target
are real.
"""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from support.live import LiveSource
from support.mariadb import MariaDb, execute
from support.tidb_double import Snapshots, write_history
from support.tinylake import put
from support.windows import target_of
from support.workload import Workload, integer, text
from test_e2e_window import expected, tables_of

from binlake.errors import CheckpointConflict, ConfigError, SourceUnavailable, TargetRefused
from binlake.lake.baseload import BaseTable
from binlake.mirror import MirrorVersions
from binlake.spark_jobs.bootstrap.source import DefinitionsDiffer
from binlake.spark_jobs.commands.bootstrap import Bootstrap, load_tidb
from binlake.spark_jobs.job.context import Bounds, StageContext
from binlake.spark_jobs.job.runner import run_window
from binlake.spark_jobs.job.stagerun import run_stage
from binlake.target import read_checkpoint
from binlake.target.session.session import TargetSession
from binlake.target.session.tables import create_tables
from deploy.local.ports import free_port

pytestmark = [pytest.mark.mariadb, pytest.mark.e2e]

ROWS = 120
NO_MIRROR: dict[str, Any] = {"mirror": {"enabled": False}}


@dataclass
class Shop:
    """A source with a history that no pump holds any more, and its SQL side."""

    live: LiveSource
    sql: Snapshots
    server: MariaDb
    target: dict[str, Any]
    shown: list[Bootstrap] = field(default_factory=list)

    @property
    def workload(self) -> Workload:
        return self.live.workload

    def context(self, **more: Any) -> StageContext:
        source = {
            "pd-urls": [self.live.driver.url], "status-url": self.live.status_url, "timeout-s": 5,
            "sql": self.sql.sql(), "snapshot": {"threads": 2, "chunk-rows": 20},
        }  # fmt: skip
        config = {"source": source, "target": self.target, "window": {"max-bytes": 4000}, **more}
        return StageContext(self.live.replication(**config), "test", no_spark)

    def tell(self) -> None:
        """Give the SQL side the history so far."""
        write_history(self.server, self.workload.jobs)

    def run_windows(self, ctx: StageContext) -> None:
        self.tell()
        until = self.live.settle()
        while (ctx.windows.find_landed_ts() or 0) < until:
            run_window(ctx)

    def load(self, ctx: StageContext, until: str = "applied", at_ts: int | None = None) -> Bootstrap:
        return load_tidb(ctx, until, self.shown.append, at_ts)


def no_spark() -> SparkSession:
    raise AssertionError("no Spark is needed")


@pytest.fixture
def shop(source: LiveSource, second_mariadb: MariaDb, target: dict[str, Any]) -> Iterator[Shop]:
    """Three tables with rows (an integer key, a text key, and no key), and an empty table."""
    workload = source.workload
    sink, workload.sink = workload.sink, None
    workload.create_database("shop")
    workload.create_table("shop", "item", [integer("id"), text("name"), integer("n")], ["id"], ["name"])
    workload.create_table("shop", "word", [text("w"), integer("n")], ["w"])
    workload.create_table("shop", "log", [integer("n"), text("what")])
    workload.create_table("shop", "empty", [integer("id")], ["id"])
    txn = workload.begin()
    for number in range(ROWS):
        txn.insert("shop", "item", id=number - 100, name=f"größe {number}", n=number)
        txn.insert("shop", "word", w=f"wört-{number:03}", n=number)
        txn.insert("shop", "log", n=number % 3, what="same")
    txn.commit()
    workload.sink = sink
    second_mariadb.wipe()
    execute(second_mariadb, "CREATE DATABASE shop CHARACTER SET utf8mb4 COLLATE utf8mb4_bin", "USE shop")
    for db, name in workload.rows:
        job = next(job for job in workload.jobs if job["query"].startswith(f"CREATE TABLE `{name}`"))
        execute(second_mariadb, f"USE {db}", job["query"])
        put(second_mariadb, workload.table(db, name), workload.rows[db, name])
    with Snapshots(second_mariadb) as sql:
        made = Shop(source, sql, second_mariadb, target)
        made.tell()
        yield made


def change(workload: Workload) -> None:
    """Change rows of the base, and other rows."""
    items = workload.rows["shop", "item"]
    txn = workload.begin()
    txn.update("shop", "item", items[3], n=-7).delete("shop", "item", **items[90])
    txn.insert("shop", "item", id=9000, name="new", n=1)
    txn.delete("shop", "log", **workload.rows["shop", "log"][0]).insert("shop", "empty", id=5)
    txn.update("shop", "word", workload.rows["shop", "word"][7], w="other")
    txn.commit()


def test_source_with_a_history_is_loaded_and_its_windows_start_after_it(
    shop: Shop, mariadb: MariaDb
) -> None:  # S4-02 S4-24 R-34
    ctx, workload = shop.context(), shop.workload
    done = shop.load(ctx)
    assert tables_of(workload, mariadb) == expected(workload)
    (load,) = done.loads
    assert (done.phase, load.rows, load.tables_done) == ("applied", 3 * ROWS, 4)
    # Every session read everything as of the base.
    assert set(shop.sql.asked) == {str(load.commit_ts)}
    landed = ctx.windows.list_landed()
    assert (landed[0][0], landed[-1][1]) == (load.from_ts, load.commit_ts)
    assert len(landed) >= 4
    assert shop.live.registry.find_drainer(ctx.drainer_id).status.max_commit_ts == load.commit_ts  # type: ignore[union-attr]
    assert shop.shown[0].loads[0].rows == 0
    assert shop.shown[-1] == done
    # Sealed like any window: landing again verifies the digest.
    for lo, hi in landed:
        assert run_stage("land", ctx, Bounds(lo, hi)).state == "already"
    change(workload)
    # Committed after the base, with a later DDL: a column that the base's rows do not have.
    workload.add_column("shop", "item", integer("more", default="4"))
    workload.begin().insert("shop", "item", id=9001, name="newer", n=1, more=5).commit()
    shop.run_windows(ctx)
    assert tables_of(workload, mariadb) == expected(workload)
    assert ctx.windows.list_landed()[len(landed)][0] == load.commit_ts
    # The lake has these tables completely, including rows that have not changed since.
    versions = MirrorVersions(ctx.paths).read_latest()
    assert {name: version.inexact for name, version in versions.items()} == dict.fromkeys(workload.rows, "")
    found = read_checkpoint(ctx.replication, shop.live.driver.cluster_id)
    assert found is not None
    assert found.consistent
    # A second run finds everything done.
    assert shop.load(ctx).phase == "applied"


@pytest.mark.parametrize(
    "broken_at", [9, pytest.param(1, marks=pytest.mark.soak), pytest.param(13, marks=pytest.mark.soak)]
)
def test_interrupted_load_resumes_and_reads_no_range_twice(
    broken_at: int, shop: Shop, mariadb: MariaDb
) -> None:  # S4-24
    ctx, reads = shop.context(**NO_MIRROR), itertools.count(1)
    shop.sql.refuse = lambda query: _is_read(query) and next(reads) == broken_at
    with pytest.raises(SourceUnavailable, match=r"interrupted the load|ended the connection|cannot be reached"):
        shop.load(ctx, "landed")
    table = BaseTable(ctx.paths)
    load = table.load()
    assert load is not None
    read_before = {(chunk.table, chunk.low) for chunk in table.read_chunks()}
    # Until the load is done, no window of the pumps may land, because it would leave a gap.
    planned = run_stage("plan", ctx)
    assert planned.state == "waiting"
    assert "full load" in planned.detail["reason"]
    shop.sql.refuse = lambda _: False
    shop.sql.queries.clear()
    # The load continues with the definitions of its snapshot, whatever happened to the tables since.
    shop.workload.add_column("shop", "word", integer("later", default="3"))
    shop.tell()
    again = shop.context(**NO_MIRROR)
    done = shop.load(again, "landed")
    assert done.loads[0].commit_ts == load.base_ts
    assert sum(map(_is_read, shop.sql.queries)) == len(table.read_chunks()) - len(read_before)
    change(shop.workload)
    shop.run_windows(again)
    assert tables_of(shop.workload, mariadb) == expected(shop.workload)


@pytest.mark.soak
@pytest.mark.parametrize("killed_at", [1, 4, 9, 13])
def test_killed_load_resumes(killed_at: int, shop: Shop, mariadb: MariaDb, tmp_path: Path) -> None:  # S4-24
    ctx, reads = shop.context(**NO_MIRROR), itertools.count(1)
    file = tmp_path / "live.toml"
    file.write_text(as_toml(ctx))
    words = ["-m", "binlake.cli", "bootstrap", "--replication", str(file), "--without-spark"]
    with subprocess.Popen([sys.executable, *words]) as child:

        def kill(query: str) -> bool:
            is_it = _is_read(query) and next(reads) == killed_at
            if is_it:
                child.kill()
            return is_it

        shop.sql.refuse = kill
    assert child.returncode == -signal.SIGKILL
    shop.sql.refuse = lambda _: False
    assert subprocess.run([sys.executable, *words], check=False).returncode == 0
    assert tables_of(shop.workload, mariadb) == expected(shop.workload)
    change(shop.workload)
    shop.run_windows(ctx)
    assert tables_of(shop.workload, mariadb) == expected(shop.workload)


def as_toml(ctx: StageContext) -> str:
    """These tests' settings as a file; the status port is closed."""
    one = ctx.replication
    assert one.target is not None
    assert one.source.sql is not None
    return f"""
name = "{one.name}"
initial-commit-ts = "0"
lake.path = "{one.lake.path}"
window.max-bytes = {one.window.max_bytes}
mirror.enabled = false
[source]
pd-urls = ["{one.source.pd_urls[0]}"]
status-url = "http://127.0.0.1:{free_port()}"
[source.sql]
host = "127.0.0.1"
port = {one.source.sql.port}
[source.snapshot]
threads = 2
chunk-rows = 20
[target]
db-type = "mariadb"
port = {one.target.port}
"""


def test_existing_target_tables_are_used_if_they_are_empty(shop: Shop, mariadb: MariaDb) -> None:  # S4-24
    job = next(job for job in shop.workload.jobs if job["query"].startswith("CREATE TABLE `item`"))
    execute(mariadb, "CREATE DATABASE shop COLLATE utf8mb4_bin", "USE shop", job["query"])
    execute(mariadb, "INSERT INTO shop.item VALUES (7777, 'old', 5)")
    few = {**NO_MIRROR, "window": {"max-bytes": 1 << 20}}
    with pytest.raises(TargetRefused, match=r"shop\.item has rows, but should have none"):
        shop.load(shop.context(**few))
    execute(mariadb, "DELETE FROM shop.item")
    shop.load(shop.context(**few))
    assert tables_of(shop.workload, mariadb) == expected(shop.workload)


def test_load_that_would_leave_a_gap_is_refused(shop: Shop, mariadb: MariaDb, tmp_path: Path) -> None:  # R-34 S0-01
    begun = shop.context()
    run_stage("plan", begun)
    with pytest.raises(CheckpointConflict, match=r"has windows without a full load.*new lake folder"):
        shop.load(begun)
    unfinished = shop.context(lake={"path": str(tmp_path / "unfinished")}, target=None)
    shop.sql.refuse = _is_read
    with pytest.raises(SourceUnavailable):
        shop.load(unfinished, "landed")
    with pytest.raises(ConfigError, match=r"started with another snapshot.*omit --at"):
        shop.load(unfinished, "landed", shop.live.pd.fetch_ts())
    filtered = shop.context(
        lake={"path": str(tmp_path / "unfinished")}, target=None, filter={"ignore-schemas": "other"}
    )
    with pytest.raises(ConfigError, match="filters or routes have changed since the load started"):
        shop.load(filtered, "landed")
    third = shop.context(lake={"path": str(tmp_path / "third")})
    session = TargetSession(target_of(mariadb))
    create_tables(session, "tidb_binlog")
    state = '{"consistent":true,"commitTS":5,"ts-map":{}}'
    session.execute(f"REPLACE INTO tidb_binlog.checkpoint VALUES ({shop.live.driver.cluster_id}, '{state}')")
    session.close()
    with pytest.raises(CheckpointConflict, match="the target has a checkpoint"):
        shop.load(third)


def test_ddl_not_yet_in_the_history_is_awaited(shop: Shop) -> None:  # S4-24
    execute(shop.server, "ALTER TABLE shop.item ADD COLUMN later INT")
    with pytest.raises(DefinitionsDiffer, match=r"differs between the DDL history.*shop\.item"):
        shop.load(shop.context(target=None), "landed", shop.live.pd.fetch_ts())


def _is_read(query: str) -> bool:
    return query.startswith("SELECT `") and " LIMIT " not in query
