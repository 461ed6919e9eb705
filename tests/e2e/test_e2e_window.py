"""Whole windows into a real MariaDB: equal to the model, whatever is repeated and however the windows are cut."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from support.live import LiveSource
from support.mariadb import MariaDb, execute, rows
from support.workload import Workload, integer, text

from binlake.errors import BinlakeError
from binlake.spark_jobs.commands.restore import restore
from binlake.spark_jobs.job.context import Bounds, StageContext
from binlake.spark_jobs.job.runner import run_window
from binlake.spark_jobs.job.stagerun import run_stage
from binlake.target import read_checkpoint

pytestmark = [pytest.mark.spark, pytest.mark.mariadb, pytest.mark.e2e]
Make = Callable[..., StageContext]


def tables_of(workload: Workload, server: MariaDb) -> dict[tuple[str, str], Counter[tuple[str | None, ...]]]:
    """The target's rows of every table of the model, as texts."""
    found = {}
    for db, table in workload.rows:
        names = [column.name for column in workload.table(db, table).columns]
        query = f"SELECT {', '.join(f'CAST(`{name}` AS CHAR)' for name in names)} FROM `{db}`.`{table}`"
        found[db, table] = Counter(rows(server, query))
    return found


def expected(workload: Workload) -> dict[tuple[str, str], Counter[tuple[str | None, ...]]]:
    """The model's rows of every table."""
    return {
        (db, table): Counter(tuple(row[c.name] for c in workload.table(db, table).columns) for row in found)
        for (db, table), found in workload.rows.items()
    }


def set_up(workload: Workload) -> None:
    """Create a keyed table with a second unique key, and a table without any key."""
    workload.create_database("d")
    workload.create_table("d", "t", [integer("id"), text("u"), integer("v")], ["id"], ["u"])
    workload.create_table("d", "log", [integer("n"), text("what")])


def some_changes(workload: Workload, seed: int, transactions: int = 12) -> None:
    """Random inserts, updates (including moved keys and swapped unique values) and deletes; duplicates in `log`."""
    draw = random.Random(seed)
    for number in range(transactions):
        txn = workload.begin()
        here = workload.rows["d", "t"]
        taken = {row["id"] for row in here}
        key, moved = draw.sample([n for n in range(200) if str(n) not in taken], 2)
        txn.insert("d", "t", id=key, u=f"u{seed}-{number}", v=draw.randrange(100))
        if len(here) >= 2:
            one, two = draw.sample(here, 2)
            txn.delete("d", "t", **one).update("d", "t", two, u=one["u"])
            txn.insert("d", "t", **{**one, "id": moved, "u": two["u"]})
        txn.insert("d", "log", n=number % 3, what="same").insert("d", "log", n=number % 3, what="same")
        if workload.rows["d", "log"] and draw.random() < 0.4:
            txn.delete("d", "log", **draw.choice(workload.rows["d", "log"]))
        txn.commit() if draw.random() < 0.85 else txn.rollback()


def run(ctx: StageContext, source: LiveSource) -> Bounds:
    """Run windows until everything written so far is landed and applied; return the last landed window."""
    until = source.settle()
    while (ctx.windows.find_landed_ts() or 0) < until:
        run_window(ctx)
    return Bounds(*ctx.windows.list_landed()[-1])


def test_window_with_ddl_on_two_tables_and_rows_between_equals_the_source(
    source: LiveSource, context: Make, target: dict[str, Any], mariadb: MariaDb
) -> None:  # S0-22 S0-55 S0-64 S3-05
    workload = source.workload
    set_up(workload)
    some_changes(workload, 1)
    workload.add_column("d", "t", integer("c", default="7"))
    workload.begin().insert("d", "t", id=900, u="new", v=1, c=8).commit()
    some_changes(workload, 2)
    workload.add_column("d", "log", text("more", default="x"))
    workload.begin().insert("d", "log", n=1, what="a", more="b").commit()
    workload.drop_column("d", "t", "v")
    workload.begin().insert("d", "t", id=901, u="newer", c=9).commit()
    workload.truncate("d", "log")
    workload.begin().insert("d", "log", n=5, what="after", more="t").commit()
    ctx = context(target=target)
    bounds = run(ctx, source)
    assert len(ctx.windows.list_landed()) == 1
    assert tables_of(workload, mariadb) == expected(workload)
    found = read_checkpoint(ctx.replication, source.driver.cluster_id)
    assert found is not None
    assert (found.commit_ts, found.consistent) == (bounds.hi, True)
    # What the page draws: the CPU of each stage, the disks of the lake and of the pumps.
    events = ctx.windows.read_events(state="done")
    spent = {event["stage"]: json.loads(event["detail"]).get("cpu_seconds") for event in events}
    assert all(spent[stage.name] > 0 for stage in ctx.replication.list_stages() if stage.name != "plan"), spent
    disks = [disk for event in events if event["stage"] == "disk" for disk in json.loads(event["detail"])["disks"]]
    assert len(disks) == 3
    assert all(0 < disk["stored"] < disk["size"] and disk["free"] for disk in disks), disks


# The driver alone repeats one window; of two, Spark's workers run the second and some stages of the first.
@pytest.mark.parametrize("windows", [1, pytest.param(2, marks=pytest.mark.soak)])
def test_repeated_stages_change_nothing_when_the_pumps_are_gone(
    source: LiveSource, context: Make, target: dict[str, Any], mariadb: MariaDb, windows: int
) -> None:  # R-01 R-03 R-24 S4-36
    workload = source.workload
    set_up(workload)
    # Stages that run alone write all rows, so the windows before must have them too.
    kept = {"keep": ["change", "statement"], "target": target, "mirror": {"enabled": True}}
    ctx = context(**kept)
    # Spark's workers and the driver alone give the same result, and readers of files see the same folder although each
    # writer names files differently.
    by_workers = context(**kept, window={"driver-bytes": 0})
    for seed in range(windows):
        some_changes(workload, seed)
        run(by_workers if seed == 1 else ctx, source)
    before = tables_of(workload, mariadb)
    assert before == expected(workload)
    lake = {table: lake_rows(ctx, table) for table in ("binlog", "mutation", "ddl", "change", "statement")}
    for pump in list(source.pumps):
        source.stop_pump(pump)
        shutil.rmtree(source.folder / pump)
    draw = random.Random(7)
    landed = [Bounds(*window) for window in ctx.windows.list_landed()]
    runs = [(stage, b) for b in landed for stage in ("land", "merge", "compact", "convert", "finalize", "mirror")]
    of_workers = {stage: draw.choice(landed) for stage, _ in runs} if windows > 1 else {}
    for stage, bounds in draw.sample(runs, len(runs)):
        run_stage(stage, by_workers if of_workers.get(stage) == bounds else ctx, bounds)
    assert tables_of(workload, mariadb) == before
    assert {table: lake_rows(ctx, table) for table in lake} == lake


def lake_rows(ctx: StageContext, table: str) -> list[str]:
    """The rows of a lake table in any order."""
    return texts(DeltaTable(ctx.paths.locate_table(table)).to_pyarrow_table())


def texts(rows: pa.Table) -> list[str]:
    """Rows as texts, independent of the order of rows and columns."""
    return sorted(map(str, rows.select(sorted(rows.column_names)).to_pylist()))


def test_sink_that_was_down_takes_several_windows_as_one_and_stops_no_other(
    source: LiveSource, context: Make, target: dict[str, Any], mariadb: MariaDb
) -> None:
    workload = source.workload
    set_up(workload)
    ctx = context(target=target, mirror={"enabled": True})
    run(ctx, source)
    down = context(target={**target, "port": 1}, mirror={"enabled": True})
    for seed in range(2):
        some_changes(workload, seed)
        source.settle()
        with pytest.raises(BinlakeError, match=r"127\.0\.0\.1"):
            run_window(down)
    mirrored = [event["hi"] for event in ctx.windows.read_events(stage="mirror")]
    assert mirrored[-1] == ctx.windows.find_landed_ts()
    run(ctx, source)
    assert tables_of(workload, mariadb) == expected(workload)
    applied = [event for event in ctx.windows.read_events(stage="finalize") if event["state"] == "done"]
    assert applied[-1]["lo"] == ctx.windows.list_landed()[0][1]


def test_lake_restores_a_range_without_the_source(
    source: LiveSource, context: Make, target: dict[str, Any], mariadb: MariaDb
) -> None:  # S0-01
    workload = source.workload
    set_up(workload)
    ctx = context(target=target)
    ends, states = [], []
    for seed in range(3):
        some_changes(workload, seed)
        ends.append(run(ctx, source).hi)
        states.append(expected(workload))
    for pump in list(source.pumps):
        source.stop_pump(pump)
    source.driver.stop()
    mariadb.wipe()
    restore(ctx, ends[0])
    assert tables_of(workload, mariadb) == states[0]
    restore(ctx)
    assert tables_of(workload, mariadb) == states[2]


def test_replication_without_a_target_opens_no_connection_and_moves_its_own_position(
    source: LiveSource, context: Make, target: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:  # S0-04 S0-05
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a connection to a target was opened")

    # Every MySQL connection calls this, including subclasses; a context with a target proves that the patch works.
    monkeypatch.setattr("pymysql.connections.Connection.connect", refuse)
    with pytest.raises(AssertionError, match="a connection to a target"):
        read_checkpoint(context(target=target).replication, source.driver.cluster_id)
    workload = source.workload
    set_up(workload)
    for number in range(10):
        workload.begin().insert("d", "t", id=number, u=f"u{number}", v=1).commit()
    ctx = context(mirror={"enabled": True})
    bounds = run(ctx, source)
    assert len(lake_rows(ctx, "mutation")) == 10
    mirrored = DeltaTable(ctx.paths.locate_mirror("d", "t")).to_pyarrow_table().to_pylist()
    assert sorted(row["id"] for row in mirrored) == list(range(10))
    assert ctx.windows.read_events(stage="mirror")[-1]["hi"] == bounds.hi


def test_windows_without_feeds_load_no_kafka_client() -> None:  # S0-05
    # In a separate process, because other tests of this process use Kafka.
    program = (
        "import sys; from importlib import import_module; from binlake.pipeline import LAKE, MIRROR, SQL\n"
        "import_module('binlake.spark_jobs.commands.main')\n"
        "names = (*LAKE.stage_names, *SQL.stage_names, *MIRROR.stage_names)\n"
        "for name in names: import_module(f'binlake.spark_jobs.stages.{name}')\n"
        "print(len(sys.modules) > 500, sorted({'kafka', 'confluent_kafka', 'aiokafka'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "[]"]


def test_first_writes_are_replace_and_delete_and_the_checkpoint_is_last(
    source: LiveSource, context: Make, target: dict[str, Any], mariadb: MariaDb
) -> None:  # C-03
    set_up(source.workload)
    ctx = context(target=target)
    run(ctx, source)
    some_changes(source.workload, 5)
    execute(mariadb, "SET GLOBAL log_output = 'TABLE'", "TRUNCATE mysql.general_log", "SET GLOBAL general_log = 1")
    try:
        bounds = run(ctx, source)
    finally:
        execute(mariadb, "SET GLOBAL general_log = 0")
    said = [str(query) for (query,) in rows(mariadb, "SELECT argument FROM mysql.general_log ORDER BY event_time")]
    reads = ("SELECT", "SHOW")
    writes = [n for n, query in enumerate(said) if "`d`." in query and not query.lstrip().upper().startswith(reads)]
    verbs = [said[n].split()[0].upper() for n in writes]
    # For the keyed table: first deletes, then writes, and never an INSERT that could find an existing row.
    keyed = [verb for n, verb in zip(writes, verbs, strict=True) if "`d`.`t`" in said[n]]
    assert set(keyed) == {"DELETE", "REPLACE"}
    assert keyed == sorted(keyed)
    assert set(verbs) == {"DELETE", "REPLACE", "INSERT"}
    stored = [n for n, query in enumerate(said) if query.startswith("REPLACE INTO") and "`checkpoint`" in query]
    assert '\\"consistent\\":false' in said[stored[0]]
    assert stored[0] < writes[0]
    arrived = [n for n in stored if f'\\"commitTS\\":{bounds.hi}' in said[n]]
    assert '\\"consistent\\":true' in said[arrived[0]]
    assert arrived[0] > writes[-1]


def toml(values: dict[str, Any], prefix: str = "") -> str:
    """Nested values as TOML."""
    plain = "".join(f"{key} = {literal(value)}\n" for key, value in values.items() if not isinstance(value, dict))
    nested = {f"{prefix}{key}": value for key, value in values.items() if isinstance(value, dict)}
    return plain + "".join(f"\n[{key}]\n{toml(value, key + '.')}" for key, value in nested.items())


def literal(value: object) -> str:
    """A TOML value."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return f"[{', '.join(map(literal, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{name} = {literal(own)}' for name, own in value.items())}}}"
    return json.dumps(value) if isinstance(value, str) else str(value)
