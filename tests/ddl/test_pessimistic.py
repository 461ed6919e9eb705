"""`shard-mode = "pessimistic"`: a DDL of a table that shares its target waits until all tables have it."""

from __future__ import annotations

from itertools import pairwise

import pytest
from support.workload import Workload, integer, text
from test_judging import SHARDS, logged, rename, rules, two_shards
from test_optimistic import alter

from binlake.ddl.ddls import build_window_schemas, plan_locked_ddls
from binlake.ddl.definitions import LandedDdl
from binlake.ddl.shardlocks import Locks, Resolution
from binlake.ddl.sharedrows import list_extras
from binlake.ddl.targets import Naming, TargetTables
from binlake.errors import SchemaError
from binlake.rows.schema import SchemaState

PESSIMISTIC = {"routes": [SHARDS], "shard_mode": "pessimistic"}
SAME = "- shared table: the target has the shape that all its tables need"


def plan_locked(w: Workload) -> tuple[list[LandedDdl], Locks]:
    """The DDL after the first four, and the locks at the end."""
    found, locks = plan_locked_ddls(SchemaState(), *logged(w), rules(**PESSIMISTIC))
    return found[4:], locks


def list_statements(w: Workload) -> list[str]:
    return [ddl.sql if ddl.decision == "apply" else f"- {ddl.reason}" for ddl in plan_locked(w)[0]]


def target_columns(w: Workload, locks: Locks, ts: int) -> list[str]:
    """The columns of the target at `ts` under `locks`."""
    tables = TargetTables(SchemaState().fold(logged(w)[1]), Naming(rules(**PESSIMISTIC)), locks.list_definitions_at(ts))
    found = tables.find("all", "t")
    return [column.name for column in found.columns] if found else []


def test_step_runs_when_the_last_table_has_it() -> None:  # R-15 S4-53
    w = two_shards()
    first = w.add_column("s1", "t_1", integer("n", default="5"))
    assert list_statements(w) == ["- shard lock: waits for s2.t_2"]
    (hold,) = plan_locked(w)[1].holds
    assert (hold.source, hold.target, hold.since, hold.waits) == (("s1", "t_1"), ("all", "t"), hold.since, True)
    assert hold.since <= first
    assert target_columns(w, plan_locked(w)[1], w.clock()) == ["id", "name"]

    w.add_column("s2", "t_2", integer("n", default="5"))
    ddls, locks = plan_locked(w)
    assert list_statements(w)[1] == "ALTER TABLE `all`.`t` ADD COLUMN `n` INT(11) DEFAULT '5'"
    names = [[c.name for c in side.tables[0].columns] for side in (ddls[1].before, ddls[1].after)]
    assert names == [["id", "name"], ["id", "name", "n"]]
    assert {hold.source[0]: hold.released for hold in locks.holds} == {"s1": ddls[1].since, "s2": ddls[1].since}
    assert not locks.still_open
    assert target_columns(w, locks, w.clock()) == ["id", "name", "n"]


def test_tables_proceed_step_by_step() -> None:
    w = two_shards()
    w.add_column("s1", "t_1", integer("a"))
    w.add_column("s1", "t_1", integer("b"))
    w.add_column("s2", "t_2", integer("a"))
    w.drop_column("s1", "t_1", "a")
    w.add_column("s2", "t_2", integer("b"))
    w.drop_column("s2", "t_2", "a")
    waits, alter_ = "- shard lock: waits for s2.t_2", "ALTER TABLE `all`.`t`"
    steps = [f"{alter_} ADD COLUMN `a` INT(11)", f"{alter_} ADD COLUMN `b` INT(11)", f"{alter_} DROP COLUMN `a`"]
    assert list_statements(w) == [waits, waits, steps[0], waits, *steps[1:]]
    ddls, locks = plan_locked(w)
    own = sorted((hold for hold in locks.holds if hold.source[0] == "s1"), key=lambda hold: hold.since)
    # The rows of a step end where the next one starts, and wait for the other table's same step.
    assert [hold.until for hold in own] == [own[1].since, own[2].since, 0]
    assert [hold.released for hold in own] == [ddls[2].since, ddls[4].since, ddls[5].since]


def test_ddl_that_no_joined_definition_could_hold_may_wait() -> None:
    w = two_shards()
    for db, table in (("s1", "t_1"), ("s2", "t_2")):
        alter(w, db, table, f"ALTER TABLE `{table}` MODIFY COLUMN `name` INT", integer("id"), integer("name"))
    assert list_statements(w) == ["- shard lock: waits for s2.t_2", "ALTER TABLE `all`.`t` MODIFY COLUMN `name` INT"]


def test_steps_in_another_order_run_when_the_shapes_match() -> None:
    w = two_shards()
    w.add_column("s1", "t_1", integer("a", default="1"))
    w.add_column("s2", "t_2", integer("b", default="2"))
    w.add_column("s1", "t_1", integer("b", default="2"))
    different = "- shard lock: the tables of all.t have reached different shapes: `binlake ddl lock`"
    assert list_statements(w) == ["- shard lock: waits for s2.t_2", different, different]
    assert [bool(ddl.alert) for ddl in plan_locked(w)[0]] == [False, True, True]
    alter(w, "s2", "t_2", "ALTER TABLE `t_2` ADD COLUMN `a` INT DEFAULT '1' AFTER `name`", integer("id"), text("name"),
          integer("a", default="1"), integer("b", default="2"))  # fmt: skip
    ddls, locks = plan_locked(w)
    assert ddls[-1].sql == ("ALTER TABLE `all`.`t` ADD COLUMN `b` INT(11) DEFAULT '2'; "
                            "ALTER TABLE `all`.`t` ADD COLUMN `a` INT DEFAULT '1' AFTER `name`")  # fmt: skip
    assert sorted(tuple(hold.filled.items()) for hold in locks.holds) == [(), (), (("a", "1"),), (("b", "2"),)]
    assert not locks.still_open


def test_dropped_table_is_not_awaited_any_more() -> None:
    w = two_shards()
    w.add_column("s1", "t_1", integer("a"))
    w.add_column("s1", "t_1", integer("b"))
    w.drop_table("s2", "t_2")
    ddls, locks = plan_locked(w)
    assert ddls[-1].sql == "ALTER TABLE `all`.`t` ADD COLUMN `a` INT(11); ALTER TABLE `all`.`t` ADD COLUMN `b` INT(11)"
    assert "its rows stay at the target" in ddls[-1].alert
    assert not locks.still_open


def test_truncated_or_new_tables_wait_with_the_others() -> None:
    w = two_shards()
    w.add_column("s1", "t_1", integer("n"))
    w.truncate("s1", "t_1")
    w.create_table("s2", "t_3", [integer("id"), text("name")], ["id"])
    w.create_table("s2", "t_4", [integer("id"), text("name"), integer("n")], ["id"])
    assert target_columns(w, plan_locked(w)[1], w.clock()) == ["id", "name"]
    w.add_column("s2", "t_2", integer("n"))
    w.add_column("s2", "t_3", integer("n"))
    ddls, locks = plan_locked(w)
    assert [ddl.decision for ddl in ddls] == ["skip", "skip", "skip", "skip", "skip", "apply"]
    assert ddls[4].reason == "shard lock: waits for s2.t_3"
    assert not locks.still_open
    w.create_table("s2", "t_5", [integer("id"), integer("other")], ["id"])
    with pytest.raises(SchemaError, match="another shape"):
        plan_locked(w)


def test_shard_that_is_loaded_after_its_alter_waits_for_the_others() -> None:  # S4-53 R-15
    w = two_shards()
    # Its first column is not the target's, and so are the ids of all.
    w.create_table("s2", "t_3", [integer("n", default="5"), integer("id"), text("name")], ["id"])
    w.add_column("s1", "t_1", integer("n", default="6"))
    assert target_columns(w, plan_locked(w)[1], w.clock()) == ["id", "name"]
    w.add_column("s2", "t_2", integer("n", default="6"))
    ddls, locks = plan_locked(w)
    assert "a table joins s1.t_1 at the target but has another shape: it also has n" in ddls[0].reason
    # The values of the existing rows are those of the two ALTER; the loaded table has no rows from before.
    assert [ddl.sql for ddl in ddls if ddl.decision == "apply"] == [
        "ALTER TABLE `all`.`t` ADD COLUMN `n` INT(11) DEFAULT '6'"
    ]
    assert {hold.source[1]: (hold.created, hold.released) for hold in locks.holds} == {
        "t_3": (True, ddls[-1].since), "t_1": (False, ddls[-1].since), "t_2": (False, ddls[-1].since),
    }  # fmt: skip
    assert not locks.still_open
    assert Locks.from_dict(locks.to_dict()).to_dict() == locks.to_dict()


def test_operator_continues_with_a_loaded_shard_alone() -> None:
    w = two_shards()
    w.create_table("s2", "t_3", [integer("id"), text("name"), integer("n", default="5")], ["id"])
    ddls, locks = resolve(w, plan_locked(w)[1])
    assert [ddl.sql for ddl in ddls] == ["ALTER TABLE `all`.`t` ADD COLUMN `n` int NULL DEFAULT 5"]
    assert not locks.still_open.holds


def test_shard_that_is_loaded_before_its_alter_is_filled_until_it_has_it() -> None:
    w = two_shards()
    for db, table in (("s1", "t_1"), ("s2", "t_2")):
        w.add_column(db, table, integer("n", default="5"))
    w.create_table("s2", "t_3", [integer("id"), text("name")], ["id"])
    ddls, locks = plan_locked(w)
    assert "it lacks n; its rows are filled" in ddls[2].reason
    binlogs, jobs = logged(w)
    schemas = build_window_schemas(SchemaState(), binlogs, jobs)
    extras = list_extras(schemas, Naming(rules(**PESSIMISTIC)), locks)
    assert [(x.table, x.values) for x in extras if x.table == "t_3"] == [("t_3", {"n": "5"})]
    w.add_column("s2", "t_3", integer("n", default="5"))
    w.add_column("s1", "t_1", integer("m"))
    ddls, locks = plan_locked(w)
    assert [ddl.reason for ddl in ddls[3:]] == [SAME.removeprefix("- "), "shard lock: waits for s2.t_2, s2.t_3"]
    assert not locks.still_open.passed


def test_loaded_shard_that_has_dropped_a_column_follows_with_the_last_drop() -> None:
    w = two_shards()
    for db, table in (("s1", "t_1"), ("s2", "t_2")):
        w.add_column(db, table, integer("n", default="5"))
    w.create_table("s2", "t_3", [integer("id"), text("name")], ["id"])
    w.drop_column("s1", "t_1", "n")
    w.drop_column("s2", "t_2", "n")
    ddls, locks = plan_locked(w)
    assert ddls[-1].sql == "ALTER TABLE `all`.`t` DROP COLUMN `n`"
    assert not locks.still_open
    w.add_column("s2", "t_3", integer("m"))
    assert plan_locked(w)[0][-1].reason == "shard lock: waits for s1.t_1, s2.t_2"


@pytest.mark.parametrize(
    ("name", "default", "problem"),
    [("n", "6", "the table's rows have '5' at the target"), ("other", None, "adds it before it has the DDL")],
)
def test_loaded_shard_that_would_differ_at_the_target_is_refused(name: str, default: str | None, problem: str) -> None:
    w = two_shards()
    for db, table in (("s1", "t_1"), ("s2", "t_2")):
        w.add_column(db, table, integer("n", default="5"))
    w.create_table("s2", "t_3", [integer("id"), text("name")], ["id"])
    w.add_column("s2", "t_3", integer(name, default=default))
    with pytest.raises(SchemaError, match=problem):
        plan_locked(w)


def test_column_rename_is_a_separate_step() -> None:
    # Between two renames, rows have a column that the target never gets, so the tables must first reach the same shape.
    w = two_shards()
    for db, table in (("s1", "t_1"), ("s2", "t_2")):
        for name in ("title", "label"):
            info = {**w.table(db, table).raw}
            columns = [dict(column) for column in info["cols"]]
            columns[1]["name"] = {"O": name, "L": name}
            w._put(db, {**info, "cols": columns})
            w._ddl(12, db, table, f"ALTER TABLE `{table}` RENAME COLUMN x TO {name}", {**info, "cols": columns})  # type: ignore[arg-type]
    assert list_statements(w) == ["- shard lock: waits for s2.t_2"] * 2 + [
        f"ALTER TABLE `all`.`t` RENAME COLUMN x TO {name}" for name in ("title", "label")
    ]


def test_existing_different_shapes_follow_the_widest() -> None:
    w = Workload()
    for number in (1, 2):
        w.create_database(f"s{number}")
    w.create_table("s1", "t_1", [integer("id"), integer("n")], ["id"])
    w.create_table("s2", "t_2", [integer("id")], ["id"])
    tables = SchemaState().fold(logged(w)[1])
    count = len(logged(w)[0])
    w.add_column("s2", "t_2", integer("n"))
    binlogs, jobs = logged(w)
    found, locks = plan_locked_ddls(tables, binlogs[count:], jobs[count:], rules(**PESSIMISTIC))
    assert [ddl.reason for ddl in found] == [SAME.removeprefix("- ")]
    assert not locks


def test_locks_are_passed_to_the_next_window_as_text() -> None:
    w = two_shards()
    w.add_column("s1", "t_1", integer("n", default="5"))
    before = len(logged(w)[0])
    whole = plan_locked(w)[1]
    again = Locks.from_dict(whole.to_dict())
    assert again.to_dict() == whole.to_dict()
    base = SchemaState().fold(logged(w)[1])
    lo = w.clock()
    w.add_column("s2", "t_2", integer("n", default="5"))
    binlogs, jobs = logged(w)
    found, locks = plan_locked_ddls(base, binlogs[before:], jobs[before:], rules(**PESSIMISTIC), lo=lo, before=again)
    assert [ddl.sql for ddl in found] == ["ALTER TABLE `all`.`t` ADD COLUMN `n` INT(11) DEFAULT '5'"]
    assert len(Locks.join([whole, locks]).holds) == 2
    assert not Locks.join([whole, locks]).still_open


def resolve(w: Workload, held: Locks, *names: tuple[str, str], sql: str = "") -> tuple[list[LandedDdl], Locks]:
    """An empty window after the logged DDL, in which an operator continues without `names`."""
    base, lo = SchemaState().fold(logged(w)[1]), w.clock()
    commanded = [Resolution(("all", "t"), names, sql)]
    return plan_locked_ddls(base, [], [], rules(**PESSIMISTIC), lo=lo, before=held.still_open, resolutions=commanded)


def test_operator_can_continue_without_a_table() -> None:  # S4-53
    w = two_shards()
    w.add_column("s1", "t_1", integer("n", default="5"))
    held = plan_locked(w)[1]
    (row,), locks = resolve(w, held)
    assert (row.sql, row.decision, row.segment) == (
        "ALTER TABLE `all`.`t` ADD COLUMN `n` INT(11) DEFAULT '5'",
        "apply",
        1,
    )
    assert "without s2.t_2" in row.alert
    assert (locks.holds[0].released, row.opens_segment) == (row.commit_ts, True)
    assert target_columns(w, locks, row.commit_ts) == ["id", "name", "n"]
    # Its rows get the missing column until the table has the DDL, which does not run again.
    lo = w.clock()
    before = len(logged(w)[0])
    base = SchemaState().fold(logged(w)[1])
    w.add_column("s2", "t_2", integer("n", default="5"))
    binlogs, jobs = (some[before:] for some in logged(w))
    found, later = plan_locked_ddls(base, binlogs, jobs, rules(**PESSIMISTIC), lo=lo, before=locks.still_open)
    assert [ddl.reason for ddl in found] == [SAME.removeprefix("- ")]
    schemas = build_window_schemas(base, binlogs, jobs, lo)
    extras = list_extras(schemas, Naming(rules(**PESSIMISTIC)), later, lo)
    assert [(extra.db, extra.values, extra.until) for extra in extras] == [("s2", {"n": "5"}, found[0].since)]
    assert not later.still_open
    (row,), _ = resolve(w, held, sql="ALTER TABLE all.t ADD n INT DEFAULT 5")
    assert (row.decision, row.sql) == ("replaced", "ALTER TABLE all.t ADD n INT DEFAULT 5")


def test_operator_can_continue_without_a_table_of_another_shape() -> None:
    w = two_shards()
    w.add_column("s1", "t_1", integer("a", default="1"))
    w.add_column("s2", "t_2", integer("b", default="2"))
    held = plan_locked(w)[1]
    assert resolve(w, held)[0] == []
    (row,), locks = resolve(w, held, ("s2", "t_2"))
    assert row.sql.endswith("ADD COLUMN `a` INT(11) DEFAULT '1'")
    assert [(hold.source[0], dict(hold.filled)) for hold in locks.holds] == [("s1", {}), ("s2", {"a": "1"})]
    assert [one.source for one in locks.still_open.passed] == [("s2", "t_2")]
    assert target_columns(w, locks, row.commit_ts) == ["id", "name", "a"]


def test_rows_of_an_awaited_table_do_not_get_the_others_columns() -> None:
    w = two_shards()
    w.add_column("s1", "t_1", integer("n", default="5"))
    held, base, lo = plan_locked(w)[1], SchemaState().fold(logged(w)[1]), w.clock()
    schemas = build_window_schemas(base, [], [], lo)
    assert list_extras(schemas, Naming(rules(**PESSIMISTIC)), held.still_open, lo) == []


def test_long_wait_is_reported_once() -> None:
    w = two_shards()
    w.add_column("s1", "t_1", integer("n"))
    held = plan_locked(w)[1]
    since = held.holds[0].since
    minutes = [since + ((n * 60_000) << 18) for n in range(4)]
    told = [len(held.list_alerts(lo, hi, 90)) for lo, hi in pairwise(minutes)]
    assert told == [0, 1, 0]
    assert held.list_alerts(minutes[0], minutes[3], 0) == []
    assert held.list_waiting(minutes[1]) == [{"table": "all.t", "since": str(since), "seconds": "60", "held": "s1.t_1"}]
    assert "rows of s1.t_1 wait since" in held.list_alerts(minutes[1], minutes[2], 90)[0]


def test_ddl_done_by_hand_is_not_a_step() -> None:
    w = two_shards()
    w.add_column("s1", "t_1", integer("a"))
    by_hand = w.add_column("s1", "t_1", integer("b"))
    _, locks = plan_locked_ddls(SchemaState(), *logged(w), rules(**PESSIMISTIC), [by_hand])
    assert len(locks.holds) == 1
    assert target_columns(w, locks, w.clock()) == ["id", "name"]


def test_last_table_of_a_target_can_still_catch_up() -> None:
    w = two_shards()
    w.add_column("s1", "t_1", integer("n", default="5"))
    _, locks = resolve(w, plan_locked(w)[1])
    base, lo, before = SchemaState().fold(logged(w)[1]), w.clock(), len(logged(w)[0])
    w.drop_table("s1", "t_1")
    w.add_column("s2", "t_2", integer("n", default="5"))
    binlogs, jobs = (some[before:] for some in logged(w))
    found, later = plan_locked_ddls(base, binlogs, jobs, rules(**PESSIMISTIC), lo=lo, before=locks.still_open)
    assert [ddl.decision for ddl in found] == ["skip", "skip"]
    assert not later.still_open


def test_table_rename_stays_refused() -> None:
    w = two_shards()
    rename(w, ("s1", "t_1"), ("s1", "x"), "RENAME TABLE `s1`.`t_1` TO `s1`.`x`")
    with pytest.raises(SchemaError, match="rename or swap"):
        plan_locked(w)
