"""Event filter: the test cases of the original, and cases that its documentation leaves open."""

from __future__ import annotations

import pytest

from binlake.common.sections import EventRule
from binlake.errors import ConfigError, Permanent
from binlake.rows.schema.job import Action
from binlake.rules.events import EventFilter


def rule(schema: str, table: str, events: list[str], action: str, sql: tuple[str, ...] = ()) -> EventRule:
    return EventRule.model_validate(
        {"schema-pattern": schema, "table-pattern": table, "events": events, "action": action, "sql-pattern": sql}
    )


RULES = [
    rule("Test_1_*", "abc*", ["delete", "insert", "create index", "drop index", "drop view"], "Ignore",
         (r"^DROP\s+PROCEDURE", r"^CREATE\s+PROCEDURE")),
    rule("xxx_*", "abc_*", ["all dml", "none ddl"], "Ignore"),
    rule("yyy_*", "abc_*", ["all dml"], "Do"),
    rule("*", "", [], "Ignore", ("^FLUSH",)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("db", "table", "event", "text", "dropped"),
    [
        ("test_1_a", "abc1", "delete", "", True),
        ("test_1_a", "abc1", "insert", "", True),
        ("test_1_a", "abc1", "create index", "", True),
        ("TEST_1_A", "ABC1", "drop view", "", True),
        ("test_1_a", "abc1", "update", "", False),
        ("test_1_a", "abc1", "rename table", "", False),
        ("test_1_a", "abc1", "", "create function abc", False),
        ("test_1_a", "abc1", "", "drop procedure abc", True),
        ("xxx_1", "abc_1", "insert", "", True),
        ("xxx_1", "abc_1", "create index", "create index i on abc_1 (a)", False),
        ("yyy_1", "abc_1", "insert", "", False),
        ("yyy_1", "abc_1", "create index", "", True),
        ("", "", "", "FLUSH ENGINE LOGS", True),
        ("other", "t", "delete", "", False),
    ],
)
def test_the_rows_of_the_original(db: str, table: str, event: str, text: str, dropped: bool) -> None:  # S4-04
    assert EventFilter(RULES).drops(db, table, event, text) is dropped


def test_first_word_that_applies_decides() -> None:
    rules = EventFilter(
        [rule("a", "t", ["none dml", "insert"], "Ignore"), rule("b", "t", ["insert", "none dml"], "Ignore")]
    )
    assert rules.list_passed_kinds("a", "t") == {"insert", "update", "delete"}
    assert rules.list_passed_kinds("b", "t") == {"update", "delete"}


@pytest.mark.parametrize(
    ("event", "action", "dropped"),
    [
        ("alter table", Action.ADD_COLUMN, True),
        ("alter table", Action.TRUNCATE_TABLE, False),
        ("incompatible ddl changes", Action.DROP_COLUMN, True),
        ("incompatible ddl changes", Action.ADD_COLUMN, False),
        ("drop schema", Action.DROP_SCHEMA, True),
        ("all ddl", Action.CREATE_SEQUENCE, False),
        ("rename table", Action.RENAME_TABLES, True),
    ],
)
def test_events_of_ddl_jobs(event: str, action: Action, dropped: bool) -> None:
    assert EventFilter([rule("a*", "", [event], "Ignore")]).passes_ddl("a", "t", action, "text") is not dropped


def test_sql_patterns_apply_only_to_ddl() -> None:
    rules = EventFilter([rule("a", "t", ["all"], "Do", ("ADD COLUMN",))])
    assert rules.list_passed_kinds("a", "t") == {"insert", "update", "delete"}
    assert rules.passes_ddl("a", "t", Action.ADD_COLUMN, "alter table t add column c int")
    assert not rules.passes_ddl("a", "t", Action.DROP_COLUMN, "alter table t drop column c")


def test_rule_with_action_error_raises() -> None:
    rules = EventFilter([rule("a", "t", ["truncate table"], "Error")])
    assert rules.list_passed_kinds("a", "t") == {"insert", "update", "delete"}
    with pytest.raises(Permanent, match="truncate table"):
        rules.passes_ddl("a", "t", Action.TRUNCATE_TABLE, "TRUNCATE TABLE t")


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ([rule("a", "t", ["insret"], "Ignore")], "did you mean `insert`"),
        ([rule("a", "t", ["insert"], "Ignore"), rule("A", "T", ["delete"], "Ignore")], "the same patterns"),
        ([rule("a", "t", [], "Do", ("x",))], "lets nothing through"),
        ([rule("a*b", "t", ["insert"], "Ignore")], "only allowed at the end"),
        ([rule("~(", "t", ["insert"], "Ignore")], "not a regular expression"),
    ],
)
def test_invalid_event_rules_are_refused(rules: list[EventRule], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EventFilter(rules)
