"""After a DDL that itself changed rows, its table is compared: differences are reported, and nothing is repaired."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from support.mariadb import MariaDb, execute
from support.shop import Shop
from support.tinylake import TinyLake, fill, set_checkpoint, target_config
from support.workload import Workload, integer, text

from binlake.ddl.definitions import LandedDdl
from binlake.ddl.rewrites import STAGE
from binlake.lake.ddls import read_landed_ddls
from binlake.lake.lock import hold_lake_lock
from binlake.lake.targetevents import read_due_tables, record_due_tables
from binlake.lake.windowlog import WindowLog
from binlake.repair import afterddl
from binlake.repair.afterddl import compare_due_tables

pytestmark = [pytest.mark.mariadb, pytest.mark.soak_on("mysql")]


class Checked:
    """A lake whose last window has a DDL that fills a column of `item`."""

    def __init__(self, lake: TinyLake, server: MariaDb, *, mirrored: bool = True) -> None:
        self.lake, self.server = lake, server
        self.windows = WindowLog(lake.paths)
        self.target = lake.replication.require_sql_target()
        before = lake.hi
        self.ts = lake.workload.add_column("shop", "item", integer("more", not_null=True))
        lake.land(mirrored=mirrored)
        execute(server, "ALTER TABLE shop.item ADD COLUMN more INT NOT NULL")
        set_checkpoint(server, lake.hi)
        self.ddls = read_landed_ddls(lake.paths, before, lake.hi)

    def note(self, ddls: list[LandedDdl] | None = None, *, passed: bool = False, target: Any = None) -> None:
        noted = self.ddls if ddls is None else ddls
        record_due_tables(target or self.target, self.windows, noted, self.lake.hi, "run", lambda: passed)

    def check(self, **target: Any) -> list[tuple[str, str]]:
        changed = self.lake.replication.model_copy(update={"target": self.target.model_copy(update=target)})
        return [(table.table, table.state) for table in compare_due_tables(changed, self.windows, self.lake.hi, "run")]

    def reported(self) -> list[str]:
        return [event["state"] for event in self.windows.read_events(stage=STAGE)]


@pytest.fixture
def checked(shop: Shop) -> Checked:
    return Checked(shop.lake, shop.server)


def test_equal_table_is_reported_and_no_longer_due(checked: Checked) -> None:
    checked.note()
    assert read_due_tables(checked.target, checked.windows) == {"shop.item": checked.ts}
    assert checked.check() == [("shop.item", "equal")]
    assert checked.check() == []
    assert checked.reported() == ["due", "equal"]


def test_rows_that_differ_after_the_ddl_are_reported_with_key_and_column_and_not_repaired(checked: Checked) -> None:
    checked.note()
    execute(checked.server, "UPDATE shop.item SET more = 9 ORDER BY id LIMIT 1")
    assert checked.check() == [("shop.item", "different")]
    [table] = json.loads(checked.windows.read_events(stage=STAGE)[-1]["detail"])["tables"]
    assert (table["against"], table["ddl_ts"]) == ("lake", str(checked.ts))
    assert table["why"].startswith('different ["')
    assert table["why"].endswith("more")
    assert "9 instead" not in table["why"]


def test_without_such_a_ddl_nothing_is_written_and_the_target_is_not_asked(checked: Checked) -> None:
    checked.note([])
    checked.note([replace(ddl, after=ddl.before) for ddl in checked.ddls])
    assert checked.check(port=1) == []
    assert checked.reported() == []


def test_old_window_makes_no_table_due(checked: Checked) -> None:
    checked.note(passed=True)
    checked.note(target=checked.target.model_copy(update={"verify_after_ddl_rows": 0}))
    assert checked.reported() == []


def test_table_above_the_size_limit_is_left_to_the_operator(checked: Checked) -> None:
    checked.note()
    assert checked.check(verify_after_ddl_rows=3) == [("shop.item", "not-comparable")]
    [table] = json.loads(checked.windows.read_events(stage=STAGE)[-1]["detail"])["tables"]
    assert "binlake verify --table shop.item" in table["why"]


def test_table_stays_due_until_the_mirrors_have_caught_up(shop: Shop) -> None:
    checked = Checked(shop.lake, shop.server, mirrored=False)
    checked.note()
    assert checked.check() == []
    assert read_due_tables(checked.target, checked.windows) == {"shop.item": checked.ts}
    assert checked.reported() == ["due"]


def test_table_stays_due_while_a_verify_runs_or_the_target_is_unavailable(checked: Checked) -> None:
    checked.note()
    with hold_lake_lock(checked.lake.paths, "verify"):
        assert checked.check() == []
    gone = checked.lake.replication.model_copy(update={"target": checked.target.model_copy(update={"port": 1})})
    record_due_tables(gone.require_sql_target(), checked.windows, checked.ddls, checked.lake.hi, "run", lambda: False)
    assert compare_due_tables(gone, checked.windows, checked.lake.hi, "run") == []
    # Tables due at another target are not due here, and vice versa.
    assert checked.check() == [("shop.item", "equal")]
    assert read_due_tables(gone.require_sql_target(), checked.windows) == {"shop.item": checked.ts}


def test_failed_comparison_fails_no_window(checked: Checked, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> object:
        raise KeyError("a type that nobody knows")

    checked.note()
    monkeypatch.setattr(afterddl, "verify", broken)
    assert checked.check() == [("shop.item", "not-comparable")]


def test_partial_table_is_reported_as_not_comparable(tmp_path: Any, empty_server: MariaDb) -> None:
    work = Workload()
    work.create_database("shop")
    work.create_table("shop", "item", [integer("id"), text("name")], ["id"])
    work.begin().insert("shop", "item", id=1, name="old").commit()
    lake = TinyLake(tmp_path, work, {"target": target_config(empty_server)})
    lake.hi = work.clock()
    work.begin().insert("shop", "item", id=2, name="two").commit()
    lake.land()
    fill(empty_server, work)
    checked = Checked(lake, empty_server)
    checked.note()
    assert checked.check() == [("shop.item", "not-comparable")]
    assert checked.reported() == ["due", "not-comparable"]
