"""`shard-mode = "pessimistic"` after an operator's `without`: which tables are awaited, and what the target has."""

from __future__ import annotations

from typing import Any

from support.workload import Col, Workload, integer, text
from test_judging import logged, rules, two_shards
from test_pessimistic import PESSIMISTIC, SAME, plan_locked, resolve

from binlake.ddl.ddls import plan_locked_ddls
from binlake.ddl.definitions import LandedDdl
from binlake.ddl.shardlocks import OPEN, Locks, Resolution
from binlake.rows.schema import SchemaState


def three_shards() -> Workload:
    w = two_shards()
    w.create_table("s2", "t_3", [integer("id"), text("name")], ["id"])
    return w


class Windows:
    """Everything logged from now on, planned as one more window after the state `held`."""

    def __init__(self, w: Workload, held: Locks, *without: tuple[str, str]) -> None:
        self.w, self._held, self._without = w, held.still_open, without
        self._base, self._lo, self._before = SchemaState().fold(logged(w)[1]), w.clock(), len(logged(w)[0])

    def plan(self) -> tuple[list[LandedDdl], Locks]:
        binlogs, jobs = (some[self._before :] for some in logged(self.w))
        commands = [Resolution(("all", "t"), self._without)] if self._without else []
        return plan_locked_ddls(
            self._base, binlogs, jobs, rules(**PESSIMISTIC), lo=self._lo, before=self._held, resolutions=commands
        )

    def list_statements(self) -> list[str]:
        return [ddl.sql if ddl.decision == "apply" else f"- {ddl.reason}" for ddl in self.plan()[0]]


def add(*columns: str) -> str:
    return "; ".join(f"ALTER TABLE `all`.`t` ADD COLUMN `{name}` INT(11)" for name in columns)


def continue_without_second(w: Workload) -> Windows:
    """The other tables have `n`; an operator continues without s2.t_2, which does not."""
    for db, table in w.rows:
        if table != "t_2":
            w.add_column(db, table, integer("n"))
    return Windows(w, plan_locked(w)[1], ("s2", "t_2"))


def test_table_passed_over_is_not_awaited_until_it_has_followed() -> None:  # S4-53
    window = continue_without_second(three_shards())
    window.w.add_column("s1", "t_1", integer("m"))
    assert window.list_statements() == [add("n"), "- shard lock: waits for s2.t_3"]
    behind = Windows(window.w, window.plan()[1])
    behind.w.add_column("s2", "t_2", integer("n"))
    behind.w.add_column("s1", "t_1", integer("o"))
    waits = "- shard lock: waits for s2.t_2, s2.t_3"
    assert behind.list_statements() == [SAME, waits]
    assert not behind.plan()[1].still_open.passed
    # In a later window it still counts as having followed.
    last = Windows(behind.w, behind.plan()[1])
    last.w.add_column("s1", "t_1", integer("p"))
    assert last.list_statements() == [waits]


def test_steps_of_others_run_at_once_next_to_a_table_passed_over() -> None:
    """The target also serves the table's present shape, whatever DDL it runs that is no step."""
    window = continue_without_second(two_shards())
    window.w.add_column("s1", "t_1", integer("m"))
    assert window.list_statements() == [add("n"), add("m")]
    window.w.truncate("s2", "t_2")
    window.w.add_column("s1", "t_1", integer("o"))
    assert window.list_statements()[2:] == [
        "- shared table: s2.t_2 shares its target with other tables: its rows stay there",
        add("o"),
    ]


def test_table_passed_over_that_takes_another_shape_is_reported() -> None:
    window = continue_without_second(two_shards())
    window.w.add_column("s2", "t_2", integer("other"))
    ddls, locks = window.plan()
    assert ddls[1].reason == "shard lock: s2.t_2 was skipped and now has another shape than the target"
    assert ddls[1].alert
    assert [one.until for one in locks.passed] == [OPEN]
    # The target continues with its own shape: the next step of the other table runs.
    window.w.add_column("s1", "t_1", integer("m"))
    assert window.list_statements()[2:] == [add("m")]


def test_released_rows_get_the_targets_values_of_that_time() -> None:
    w = two_shards()
    for name in ("a", "b"):
        for db, table in (("s1", "t_1"), ("s2", "t_2")):
            w.add_column(db, table, integer(name, default="7"))
    ddls, locks = plan_locked(w)
    assert [ddl.decision for ddl in ddls] == ["skip", "apply", "skip", "apply"]
    # Of two releases in one window, the second adds nothing to the rows of the first.
    assert [dict(hold.filled) for hold in locks.holds] == [{}] * 4


def rename_column(w: Workload, db: str, table: str, name: str) -> None:
    info: dict[str, Any] = {**w.table(db, table).raw}
    columns = [dict(column) for column in info["cols"]]
    columns[1]["name"] = {"O": name, "L": name}
    w._put(db, {**info, "cols": columns})
    w._ddl(12, db, table, f"ALTER TABLE `{table}` RENAME COLUMN x TO {name}", {**info, "cols": columns})  # type: ignore[arg-type]


def test_tables_are_not_joined_across_a_name_that_the_target_never_had() -> None:
    """Rows of s1.t_1 between its two renames have a value for `title`, while the target goes from `name` to `label`."""
    w = two_shards()
    rename_column(w, "s1", "t_1", "title")
    rename_column(w, "s1", "t_1", "label")
    rename_column(w, "s2", "t_2", "label")
    ddls, locks = plan_locked(w)
    assert [ddl.decision for ddl in ddls] == ["skip"] * 3
    assert "have reached different shapes" in ddls[2].alert
    assert all(hold.waits for hold in locks.holds)


def test_command_that_leaves_no_table_releases_nothing() -> None:
    w = two_shards()
    w.add_column("s1", "t_1", Col("n"))
    assert resolve(w, plan_locked(w)[1], ("s1", "t_1"), ("s2", "t_2"))[0] == []
