"""A repaired range gets the state at the checkpoint, never an older one; a rolled-back range its starting state."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from support.mariadb import MariaDb, execute, rows
from support.shop import Shop
from support.tinylake import TinyLake, fill, replication_toml, set_checkpoint, target_config
from support.workload import Workload, integer

from binlake.cli import run as main
from binlake.dialect.replacement import Injection
from binlake.errors import ConfigError, Drift, LeaseHeld, Permanent, TargetRefused
from binlake.lake.windowlog import WindowLog
from binlake.repair.rangerepair import BackfillProgress, hold_target, repair_range
from binlake.repair.rollback import plan_rollback, rollback_source, rollback_target
from binlake.repair.verify import VerifyOptions, verify

pytestmark = [pytest.mark.mariadb, pytest.mark.soak_on("mysql")]
Shown = dict[str, Counter[str]]


def apply_window(shop: Shop, changes: int) -> int:
    """Apply a window of random changes, with moved keys and rows without a key, to the target; returns its end."""
    w, chance = shop.workload, shop.chance
    for _ in range(changes):
        name = chance.choice(["item", "pair", "log", "types"])
        row = dict(chance.choice(shop.rows(name)))
        change = chance.choice(["insert", "update", "delete", "move"])
        txn = w.begin()
        if change == "delete" or name == "log":
            txn.delete("shop", name, **row)
        if change == "insert" or name == "log":
            new = {"n": str(chance.randint(1000, 9999))} if "id" not in row else {"id": str(chance.randint(1000, 9999))}
            txn.insert("shop", name, **{**row, **new, **({"name": None} if "name" in row else {})})
        elif change == "update":
            last = w.table("shop", name).row_columns[-1].name
            txn.update("shop", name, row, **{last: None})
        elif change == "move":
            key = "id" if "id" in row else "n"
            txn.update("shop", name, row, **{key: str(chance.randint(1000, 9999))})
        txn.commit()
    ts = shop.lake.land()
    shop.refill()
    set_checkpoint(shop.server, ts)
    return ts


def progress(shop: Shop, lo: int, hi: int) -> BackfillProgress:
    return BackfillProgress(WindowLog(shop.lake.paths), "test", lo, hi)


def test_old_range_is_repaired_to_the_checkpoint_and_not_to_its_own_end(shop: Shop) -> None:
    # C-05, R-01
    lo = shop.ts
    hi = apply_window(shop, 25)
    apply_window(shop, 25)
    keys = {key for change in shop.changes(lo, hi) for key in (change.key, change.new_key) if key}
    shop.spoil(40)
    before = find_wrong_rows(shop)
    done = repair_range(shop.lake.replication, progress(shop, lo, hi))
    # Rows of the range are right, all others are unchanged.
    assert find_wrong_rows(shop) == before - keys
    assert done.keys >= len(keys)
    repair_range(shop.lake.replication, progress(shop, 0, shop.lake.hi))
    ever = {key for change in shop.changes(0, shop.lake.hi) for key in (change.key, change.new_key) if key}
    assert find_wrong_rows(shop) == before - ever


def find_wrong_rows(shop: Shop) -> set[str]:
    """Keys of the target whose rows are wrong."""
    return {difference.key for difference in verify(shop.lake.replication, VerifyOptions(chunk_rows=7)).differences}


def test_killed_repair_continues_after_its_last_window(shop: Shop) -> None:
    # U-23, U-24
    class Killed(BaseException):
        pass

    def power_cut(step: str) -> None:
        if step == "batch" and len(progress(shop, lo, hi).list_remaining()) == 1:
            raise Killed

    lo = shop.ts
    apply_window(shop, 15)
    hi = apply_window(shop, 15)
    right = shop.read_rows()
    execute(shop.server, *[f"DELETE FROM shop.`{name}`" for _, name in shop.workload.rows])
    with pytest.raises(Killed):
        repair_range(shop.lake.replication, progress(shop, lo, hi), hook=power_cut)
    left = progress(shop, lo, hi).list_remaining()
    assert len(left) == 1
    done = repair_range(shop.lake.replication, progress(shop, lo, hi))
    assert done.different > 0
    assert progress(shop, lo, hi).list_remaining() == []
    present = {change.key for change in shop.changes(lo, hi)}
    verified = verify(shop.lake.replication)
    assert not {difference.key for difference in verified.differences} & present
    assert {difference.kind for difference in verified.differences} == {"missing"}
    assert all(not (shown - right[name]) for name, shown in shop.read_rows().items())
    progress(shop, lo, hi).finish({})
    assert len(progress(shop, lo, hi).list_remaining()) == 2


def test_tables_altered_since_then_are_repaired_too(shop: Shop) -> None:
    # another key, a recreated table, a dropped one
    lo = shop.ts
    w = shop.workload
    hi = apply_window(shop, 20)
    w.add_column("shop", "log", integer("more", default="7"))
    execute(shop.server, "ALTER TABLE shop.log ADD COLUMN more INT DEFAULT 7")
    w.truncate("shop", "pair")
    w.drop_table("shop", "types")
    execute(shop.server, "DROP TABLE shop.types")
    trade_nothing = shop.lake.land()
    shop.refill()
    set_checkpoint(shop.server, trade_nothing)
    right = shop.read_rows()
    execute(shop.server, "UPDATE shop.log SET more = 8 LIMIT 3")
    done = repair_range(shop.lake.replication, progress(shop, lo, hi))
    assert done.gone == ["shop.types"]
    assert shop.read_rows() == right


def test_lake_that_starts_late_judges_only_rows_it_has_seen(server: MariaDb, tmp_path: Path) -> None:
    # rows that the lake never saw are not reported as extra
    server.wipe()
    w = Workload()
    w.create_database("shop")
    w.create_table("shop", "t", [integer("id"), integer("n")], ["id"])
    w.create_table("shop", "log", [integer("n")])
    for key in range(5):
        w.begin().insert("shop", "t", id=key, n=key).insert("shop", "log", n=key % 2).commit()
    lake = TinyLake(tmp_path, w, {"target": target_config(server)})
    lake.hi = lo = w.clock()
    w.begin().update("shop", "t", {"id": "1", "n": "1"}, n=100).insert("shop", "log", n=1).commit()
    w.create_table("shop", "late", [integer("id")], ["id"])
    w.begin().insert("shop", "late", id=1).commit()
    ts = lake.land()
    fill(server, w)
    set_checkpoint(server, ts)
    execute(server, "UPDATE shop.t SET n = 7 WHERE id IN (1, 2)", "DELETE FROM shop.log", "DELETE FROM shop.late")
    verified = verify(lake.replication)
    assert {table.table: bool(table.inexact) for table in verified.tables} == {"t": True, "log": True, "late": False}
    assert [str(difference) for difference in verified.differences] == ['shop.late ["1"]: missing']
    assert not verified.whole
    done = repair_range(lake.replication, BackfillProgress(WindowLog(lake.paths), "test", lo, ts))
    assert done.unknown == ["shop.log"]
    assert rows(server, "SELECT * FROM shop.t ORDER BY id") == [(0, 0), (1, 100), (2, 7), (3, 3), (4, 4)]
    assert rows(server, "SELECT * FROM shop.late") == [(1,)]
    assert rows(server, "SELECT * FROM shop.log") == []


def test_range_on_the_target_is_rolled_back_to_its_start(shop: Shop) -> None:
    # DESIGN 4, DESIGN 3.8: after a rollback, the checkpoint does not claim that the target equals the source
    lo = shop.ts
    start = shop.read_rows()
    hi = apply_window(shop, 40)
    with hold_target(shop.lake.replication, 0) as target:
        plan, _ = rollback_target(shop.lake.replication, lo, hi, target, force=False)
    assert shop.read_rows() == start
    assert plan.keys > 20
    assert '"consistent":false' in rows(shop.server, "SELECT checkPoint FROM tidb_binlog.checkpoint")[0][0]


def test_rollback_is_refused_for_a_table_with_extra_columns(shop: Shop) -> None:
    # the undo writes whole rows
    lo = shop.ts
    hi = apply_window(shop, 40)
    changed = shop.read_rows()
    execute(shop.server, "ALTER TABLE shop.log ADD COLUMN own INT DEFAULT 1")
    with hold_target(shop.lake.replication, 0) as target, pytest.raises(Drift, match=r"columns of its own.*: own"):
        rollback_target(shop.lake.replication, lo, hi, target, force=False)
    execute(shop.server, "ALTER TABLE shop.log DROP COLUMN own")
    assert shop.read_rows() == changed


def test_rollback_never_removes_a_later_row_that_reused_its_unique_value(shop: Shop) -> None:
    # key 5000 is outside the range, so only the server can detect it
    lo, w, item = shop.ts, shop.workload, dict(shop.rows("item")[0])
    w.begin().delete("shop", "item", **item).commit()
    hi = shop.lake.land()
    w.begin().insert("shop", "item", id=5000, name=item["name"], n=1).commit()
    ts = shop.lake.land()
    shop.refill()
    set_checkpoint(shop.server, ts)
    changed = shop.read_rows()
    with hold_target(shop.lake.replication, 0) as target, pytest.raises(TargetRefused, match="Duplicate entry"):
        rollback_target(shop.lake.replication, lo, hi, target, force=False)
    assert shop.read_rows() == changed


def test_range_with_later_changes_is_rolled_back_only_with_force(shop: Shop) -> None:
    lo = shop.ts
    w = shop.workload
    item = dict(shop.rows("item")[0])
    w.begin().update("shop", "item", item, n="100").commit()
    middle = shop.lake.land()
    w.begin().update("shop", "item", {**item, "n": "100"}, n="200").commit()
    ts = shop.lake.land()
    shop.refill()
    set_checkpoint(shop.server, ts)
    replication = shop.lake.replication
    with hold_target(replication, 0) as target:
        with pytest.raises(Permanent, match=r"1 keys were changed again after the range: shop.item"):
            rollback_target(replication, lo, middle, target, force=False)
        with pytest.raises(ConfigError, match="cannot be undone"):
            rollback_target(replication, lo, ts + 1, target, force=True)
        execute(shop.server, f"UPDATE shop.item SET n = 5 WHERE id = {item['id']}")
        with pytest.raises(Permanent, match="differ from their state after the range"):
            rollback_target(replication, lo, ts, target, force=False)
        rollback_target(replication, lo, middle, target, force=True)
    assert rows(shop.server, f"SELECT n FROM shop.item WHERE id = {item['id']}") == [(int(item["n"] or 0),)]


def test_range_with_a_ddl_is_not_rolled_back(shop: Shop) -> None:
    lo = shop.ts
    row = dict(shop.rows("item")[0])
    shop.workload.begin().update("shop", "item", row, n="100").commit()
    shop.workload.add_column("shop", "item", integer("more"))
    ts = shop.lake.land()
    set_checkpoint(shop.server, ts)
    with hold_target(shop.lake.replication, 0) as target, pytest.raises(Permanent, match="a DDL has changed a table"):
        rollback_target(shop.lake.replication, lo, ts, target, force=True)


def test_range_with_an_injected_statement_is_not_rolled_back(shop: Shop) -> None:
    # U-15: the column is in no definition of the source
    lo = shop.ts
    row = dict(shop.rows("item")[0])
    shop.workload.begin().update("shop", "item", row, n="100").commit()
    ts = shop.lake.land()
    set_checkpoint(shop.server, ts)
    shop.lake.inject(lo, Injection(ts, "ALTER TABLE Item ADD INDEX own (n)", "shop"))
    replication = shop.lake.replication
    with (
        hold_target(replication, 0) as target,
        pytest.raises(Permanent, match=r"a DDL has changed a table.*ddl=ALTER TABLE Item"),
    ):
        rollback_target(replication, lo, ts, target, force=True)
    assert plan_rollback(replication, lo, ts, ts, "source").keys == 1


def test_range_is_rolled_back_at_the_source_by_a_new_change(
    first_shop: Shop, second_mariadb: MariaDb, tmp_path: Path
) -> None:
    sql = {"host": second_mariadb.host, "port": second_mariadb.port, "user": second_mariadb.user}
    shop = first_shop.copy(tmp_path, source={"sql": sql})
    start = shop.read_rows()
    lo, hi = shop.ts, apply_window(shop, 40)
    second_mariadb.wipe()
    shop.fill(second_mariadb)
    target = shop.read_rows()
    rollback_source(shop.lake.replication, lo, hi, force=False)
    assert shop.read_rows(second_mariadb) == start
    assert shop.read_rows() == target
    with pytest.raises(Permanent, match="differ from their state after the range"):
        rollback_source(shop.lake.replication, lo, hi, force=False)


def test_command_runs_alone_and_reports_in_json(shop: Shop, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    #
    lo, hi = shop.ts, apply_window(shop, 15)
    file, result = tmp_path / "demo.toml", tmp_path / "result.json"
    file.write_text(replication_toml(shop.lake.replication))
    arguments = ["--replication", str(file), "--from", str(lo), "--to", str(hi), "--result", str(result)]
    right = shop.read_rows()
    execute(shop.server, "DELETE FROM shop.item", "DELETE FROM shop.log")
    assert main(["backfill", "repair", *arguments, "--output", "json"]) == 0
    repaired = json.loads(result.read_text())["results"][0]
    assert (repaired["state"], repaired["lo"], repaired["hi"]) == ("done", str(lo), str(hi))
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == [repaired]
    # The tables that were compared with the lake, and the tables that were written.
    looked, wrote = ([entry["table"] for entry in repaired["detail"]["lineage"][side]] for side in ("read", "wrote"))
    assert (set(wrote), set(wrote) <= set(looked)) == ({"item", "log"} & set(looked), True)
    assert wrote
    item = shop.workload.table("shop", "item")
    written = {
        entry["table"]: [name for name, _ in entry["columns"]] for entry in repaired["detail"]["lineage"]["wrote"]
    }
    assert written.get("item") in (None, [column.name for column in item.columns])
    assert all(not (shown - right[name]) for name, shown in shop.read_rows().items())
    with hold_target(shop.lake.replication, 0):
        assert main(["backfill", "repair", *arguments, "--wait", "0"]) == 1
    assert json.loads(result.read_text())["error"]["class"] == LeaseHeld.__name__
    undo = tmp_path / "undo.sql"
    shop.refill()
    assert main(["backfill", "rollback", *arguments, "--write-to", "file", "--file", str(undo)]) == 0
    assert "lineage" not in json.loads(result.read_text())["results"][0]["detail"]
    assert shop.read_rows() == right
    # It is not a fix, because it does not lead to the source's state.
    assert main(["repair", "--replication", str(file), "--from-file", str(undo)]) == 1
    assert main(["backfill", "repair", *arguments[:4], "--to", str(hi + 1)]) == 1
    assert main(["backfill", "rollback", *arguments, "--write-to", "target"]) == 0
    (undone,) = json.loads(result.read_text())["results"]
    changed = {change.table for change in shop.changes(lo, hi)}
    assert {entry["table"] for entry in undone["detail"]["lineage"]["wrote"]} == changed
