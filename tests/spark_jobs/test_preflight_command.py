"""`binlake preflight` before anything is landed, and the same check before a replication's first window."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from support.mariadb import MariaDb, execute
from support.workload import Workload, integer, text

from binlake.cli import run as main
from binlake.config.load import load_replication
from binlake.errors import Drift
from binlake.lake.paths import LakePaths
from binlake.lake.schemas import SchemaHistory
from binlake.spark_jobs.commands import preflight
from binlake.spark_jobs.job.context import Bounds, StageContext
from binlake.spark_jobs.shared.sinks import read_mirror_window
from binlake.spark_jobs.shared.sqlwindow import Compacted
from binlake.spark_jobs.stages import convert
from binlake.target import TargetPosition
from binlake.window.derived import CompactManifest, Merged

pytestmark = pytest.mark.mariadb


@pytest.fixture
def work() -> Workload:
    made = Workload()
    made.create_database("app")
    made.create_table("app", "a", [integer("id"), text("v")], ["id"])
    made.create_table("app", "b", [integer("id"), text("v")], ["id"])
    made.create_table("app", "left", [integer("id")], ["id"])
    return made


@pytest.fixture
def file(empty_mariadb: MariaDb, tmp_path: Path) -> Path:
    """A replication into d, where b has an extra column; nothing is landed."""
    columns = "id INT PRIMARY KEY, v VARCHAR(64) COLLATE utf8mb4_bin"
    execute(
        empty_mariadb,
        "CREATE DATABASE d CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
        f"CREATE TABLE d.a ({columns})",
        f"CREATE TABLE d.b ({columns}, note INT)",
        "CREATE TRIGGER d.told AFTER DELETE ON d.a FOR EACH ROW SET @told = 1",
    )
    made = tmp_path / "demo.toml"
    made.write_text(
        f'name = "demo"\n[lake]\npath = "{tmp_path / "lake"}"\n'
        '[[filter.ignore-table]]\ndb-name = "app"\ntbl-name = "left"\n'
        '[[routes]]\nschema-pattern = "app"\ntarget-schema = "d"\n'
        f'[target]\ndb-type = "mariadb"\nhost = "{empty_mariadb.host}"\nport = {empty_mariadb.port}\n'
    )
    return made


@pytest.fixture
def cluster(work: Workload, monkeypatch: pytest.MonkeyPatch) -> None:
    """The source, as a cluster that preflight can ask."""

    @contextmanager
    def open_cluster(_: object) -> Iterator[SimpleNamespace]:
        source = SimpleNamespace(fetch_ddl_jobs=lambda _since: reversed(work.jobs))
        yield SimpleNamespace(cluster_id=7, pd=SimpleNamespace(fetch_ts=work.clock), source=source)

    monkeypatch.setattr(preflight, "open_cluster", open_cluster)


@pytest.mark.usefixtures("cluster")
def test_preflight_asks_the_source_before_the_first_landing(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # R-13, S4-05: under the target's names, with filters applied
    assert main(["preflight", "--replication", str(file), "--output", "json"]) == 1
    found = {(r["db"], r["table"]): r["verdict"] for r in json.loads(capsys.readouterr().out)}
    assert found == {("d", "a"): "alike", ("d", "b"): "refused"}
    file.write_text(file.read_text() + '[[target.tables]]\ndb-name = "d"\ntbl-name = "b"\npreserve = true\n')
    assert main(["preflight", "--replication", str(file)]) == 0
    shown = capsys.readouterr().out
    assert "kept: note" in shown
    assert "trigger told (AFTER DELETE)" in shown
    assert "1 alike, 1 preserve" in shown


def test_tables_without_rows_are_checked_before_the_first_window(file: Path, work: Workload) -> None:
    #
    replication = load_replication(str(file))
    lo = work.clock()
    SchemaHistory(LakePaths.of(replication)).bootstrap(lo, work.jobs)
    ctx = StageContext(replication, "test", lambda: pytest.fail("no Spark"))
    assert replication.target is not None
    window = read_mirror_window(ctx, Bounds(lo, lo + 1), Merged(0, 0, True, ()))
    given = Compacted(window, cast(CompactManifest, None), TargetPosition(None, None, 1 << 20), None)
    with pytest.raises(Drift, match=r"d\.b: column note is the target's own"):
        convert._check_before_first(ctx, given, replication.target)


@pytest.mark.usefixtures("cluster")
def test_tables_created_after_the_start_are_compared_and_none_is_not_fine(
    file: Path, work: Workload, capsys: pytest.CaptureFixture[str]
) -> None:
    """A replication from the beginning has no table at its start: what the source has now is compared."""
    work.create_table("app", "c", [integer("id")], ["id"])
    file.write_text('initial-commit-ts = "0"\n' + file.read_text())
    assert main(["preflight", "--replication", str(file), "--output", "json"]) == 1
    found = {r["table"]: r["verdict"] for r in json.loads(capsys.readouterr().out)}
    assert found == {"a": "alike", "b": "refused", "c": "coming"}
    work.jobs.clear()
    assert main(["preflight", "--replication", str(file)]) == 3
    shown = capsys.readouterr()
    assert "no table" in shown.out
    assert "nothing was compared" in shown.err


@pytest.mark.usefixtures("cluster")
def test_column_that_the_source_adds_itself_is_not_to_be_preserved(
    file: Path, work: Workload, capsys: pytest.CaptureFixture[str]
) -> None:
    start = work.clock()
    work.add_column("app", "b", integer("note"))
    file.write_text(f'initial-commit-ts = "{start}"\n' + file.read_text())
    assert main(["preflight", "--replication", str(file), "--output", "json"]) == 1
    [report] = [one for one in json.loads(capsys.readouterr().out) if one["table"] == "b"]
    assert report["ways"][0].startswith("drop note from the target's table: a later DDL of the source adds it")
    assert not any("preserve" in way for way in report["ways"])
