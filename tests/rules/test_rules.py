"""All rules of a replication together: whether a table is replicated, its name at the target, and its changes."""

from __future__ import annotations

from typing import Any

import pytest
from support.tabledefs import col, key, primary, table

from binlake.config import Replication
from binlake.errors import ConfigError
from binlake.rows.schema import TableDef
from binlake.rows.schema import mysqltypes as t
from binlake.rules import Rules

BOTH_WAYS = {"loopback-control": True, "sync-ddl": False, "mark-schema": "marks", "mark-table": "m"}
KEYED = table("t", col("id", not_null=True), col("v"), keys=(primary("id"),), db="s")
TWO_KEYS = table("t", col("id", not_null=True), col("v"), keys=(primary("id"), key("u", "v")), db="s")
KEYLESS = table("t", col("v"), db="s")


def rules(**config: Any) -> Rules:
    raw = {name.replace("_", "-"): value for name, value in config.items()}
    return Rules.of(Replication.model_validate({"name": "demo", "lake": {"path": "x"}, **raw}))


def dropped(*events: str) -> Rules:
    """Rules whose event filter drops these changes of s.t."""
    rule = {"schema-pattern": "s", "table-pattern": "t", "events": list(events), "action": "Ignore"}
    return rules(filters=[rule])


def test_routes_apply_only_to_replicated_tables() -> None:
    route = {"schema-pattern": "s", "table-pattern": "t", "target-schema": "x", "target-table": "y"}
    found = rules(filter={"ignore-table": [{"db-name": "s", "tbl-name": "gone"}]}, routes=[route])
    assert found.route(KEYED) == ("x", "y")
    assert found.route(table("other", col("id"), db="s")) == ("s", "other")
    assert found.route(table("gone", col("id"), db="s")) is None
    assert (found.keeps("s", "t"), found.keeps("s", "gone")) == (True, False)


def test_block_allow_list_is_used_if_configured() -> None:
    found = rules(block_allow_list={"do-dbs": ["s"]})
    assert (found.keeps("s", "t"), found.keeps("d", "t")) == (True, False)


def test_mark_and_opposite_checkpoint_tables_are_not_replicated() -> None:
    found = rules(loopback=BOTH_WAYS, target={"host": "h", "checkpoint-schema": "own"})
    assert found.marks is not None
    assert found.copies_ddl is False
    kept = {(db, name): found.keeps(db, name) for db in ("marks", "Own", "s") for name in ("M", "other", "")}
    assert kept == {
        ("marks", "M"): False, ("marks", "other"): True, ("marks", ""): False,
        ("Own", "M"): False, ("Own", "other"): False, ("Own", ""): False,
        ("s", "M"): True, ("s", "other"): True, ("s", ""): True,
    }  # fmt: skip


def test_without_a_target_the_default_checkpoint_database_is_used() -> None:
    assert not rules(loopback=BOTH_WAYS).keeps("tidb_binlog", "checkpoint")


def test_without_loopback_control_there_is_no_mark_table() -> None:
    found = rules(target={"host": "h", "checkpoint-schema": "own"})
    assert (found.marks, found.own_schema, found.copies_ddl) == (None, "", True)
    assert found.keeps("own", "t")
    assert found.keeps("retl", "_drainer_repl_mark")


@pytest.mark.parametrize(
    ("events", "left"),
    [
        ([], {"insert", "update", "delete"}),
        (["insert"], {"update", "delete"}),
        (["delete"], {"insert", "update"}),
        (["all dml"], set()),
    ],
)
def test_kinds_are_those_that_the_event_filter_passes(events: list[str], left: set[str]) -> None:
    found = dropped(*events) if events else rules()
    assert found.list_passed_kinds(KEYED) == left


@pytest.mark.parametrize(
    ("events", "words"), [(["update"], "drops update of"), (["update", "delete"], "drops delete and update of")]
)
def test_rows_left_behind_need_consent_with_several_unique_keys(events: list[str], words: str) -> None:
    #
    with pytest.raises(ConfigError, match=f"{words} a table with more than one unique key") as refused:
        dropped(*events).list_passed_kinds(TWO_KEYS)
    assert refused.value.where == {"table": "s.t"}
    dropped(*events).list_passed_kinds(KEYED)
    # Rows that were never copied cannot stay behind, and no rows exist if no change passes.
    dropped("insert").list_passed_kinds(TWO_KEYS)
    dropped("all dml").list_passed_kinds(TWO_KEYS)


def test_dropping_by_expression_counts_like_dropping_by_event() -> None:
    def by(**expression: str) -> Rules:
        return rules(expression_filter=[{"schema": "s", "table": "t", **expression}])

    with pytest.raises(ConfigError, match="drops delete of a table with more than one unique key"):
        by(**{"delete-value-expr": "v = 1"}).list_passed_kinds(TWO_KEYS)
    by(**{"insert-value-expr": "v = 1"}).list_passed_kinds(TWO_KEYS)
    with pytest.raises(ConfigError, match="drops insert of a table without a key and lets delete and update through"):
        by(**{"insert-value-expr": "v = 1"}).list_passed_kinds(KEYLESS)
    assert by(**{"delete-value-expr": "v = 1"}).list_passed_kinds(KEYLESS) == {"insert", "update", "delete"}


@pytest.mark.parametrize(
    ("events", "words"),
    [
        (["insert"], "drops insert of a table without a key and lets delete and update through"),
        (["update"], "drops update of a table without a key and lets delete through"),
        (["insert", "update"], "drops insert and update of a table without a key and lets delete through"),
    ],
)
def test_keyless_rows_must_be_copied_before_they_change(events: list[str], words: str) -> None:  # S4-04
    with pytest.raises(ConfigError, match=words) as refused:
        dropped(*events).list_passed_kinds(KEYLESS)
    assert refused.value.where == {"table": "s.t"}
    dropped(*events).list_passed_kinds(KEYED)


@pytest.mark.parametrize("events", [["delete"], ["update", "delete"], ["all dml"]])
def test_keyless_tables_may_replicate_only_inserts(events: list[str]) -> None:
    assert "delete" not in dropped(*events).list_passed_kinds(KEYLESS)


def test_view_without_a_key_is_accepted() -> None:
    view = table("t", col("v"), db="s", view={"view_select": "select 1"})
    assert isinstance(view, TableDef)
    assert view.kind == "view"
    dropped("insert").list_passed_kinds(view)


def test_ddl_cannot_be_both_ignored_and_replaced() -> None:
    statements = {"12": "alter table s.t add c int", "13": "create table s.a (b int)"}
    replacement = [{"commit-ts": commit_ts, "sql": sql} for commit_ts, sql in statements.items()]
    with pytest.raises(ConfigError, match=r"left out by filter.ignore-txn-commit-ts and replaced") as refused:
        rules(ddl_replacement=replacement, filter={"ignore-txn-commit-ts": ["13", "12", "9"]})
    assert refused.value.where == {"commit_ts": "12"}
    assert set(rules(ddl_replacement=replacement, filter={"ignore-txn-commit-ts": ["9"]}).replacements) == {12, 13}


@pytest.mark.parametrize(("new_collation", "is_dropped"), [(True, True), (False, False)])
def test_expressions_compare_texts_like_the_source(new_collation: bool, is_dropped: bool) -> None:
    text = col("v", t.VARCHAR, flen=10, collate="utf8mb4_general_ci")
    drop = {"schema": "s", "table": "t", "delete-value-expr": "v = 'A'"}
    found = rules(source={"new-collation": new_collation}, expression_filter=[drop])
    ((half,),) = found.expressions.build_conditions(table("t", text, db="s"))["delete"]
    assert bool(half.program(["a"])) is is_dropped
    assert bool(half.program(["A"])) is True
