"""A planned DDL under filters and routes: its names, its text, its definitions before and after, and its alert."""

from __future__ import annotations

from typing import Any

import pytest
from support.workload import Workload, integer, text
from test_judging import plan, two_shards

from binlake.errors import SchemaError
from binlake.rows.schema import Action

RENAMED_OUT: dict[str, Any] = {"filter": {"ignore-schemas": "archive", "renamed-out": "drop"}}


def shop(*tables: str) -> Workload:
    w = Workload()
    for name in ("shop", "archive"):
        w.create_database(name)
    for table in tables or ("a", "b"):
        w.create_table("shop", table, [integer("id")], ["id"])
    return w


def rename_tables(w: Workload, query: str, **to: tuple[str, str]) -> None:
    """RENAME TABLE of several tables of `shop`."""
    infos = []
    for table, (_, name) in to.items():
        raw = w.table("shop", table).raw
        infos.append({**raw, "name": {"O": name, "L": name}})
    w._ddl(Action.RENAME_TABLES, "shop", next(iter(to)), query, None)
    w.jobs[-1]["binlog"]["MultipleTableInfos"] = infos


def test_filtered_ddl_keeps_the_sources_names() -> None:
    w = shop()
    w.add_column("shop", "b", integer("n"))
    rule = {"schema-pattern": "shop", "target-schema": "x"}
    found = plan(w, routes=[rule], filter={"ignore-table": [{"db-name": "shop", "tbl-name": "b"}]})
    assert [(ddl.db, ddl.table, ddl.reason) for ddl in found if ddl.table or ddl.db == "x"] == [
        ("x", "", ""), ("x", "a", ""), ("shop", "b", "filtered"), ("shop", "b", "filtered"),
    ]  # fmt: skip
    # Without routes, names are the source's in any case.
    assert [(ddl.db, ddl.table) for ddl in plan(w)[2:]] == [("shop", "a"), ("shop", "b"), ("shop", "b")]


def test_rename_list_without_tables_that_leave_drops_nothing() -> None:  # issue 13.2
    w = shop()
    query = "RENAME TABLE `shop`.`a` TO `shop`.`c`, `shop`.`b` TO `shop`.`d`"
    rename_tables(w, query, a=("shop", "c"), b=("shop", "d"))
    found = plan(w, **RENAMED_OUT)[-1]
    assert (found.sql, found.alert) == (query, "")


def test_renames_left_out_of_a_list_are_named() -> None:
    w = shop()
    info = {**w.table("shop", "b").raw, "name": {"O": "d", "L": "d"}}
    log = {**w.table("shop", "a").raw, "name": {"O": "log", "L": "log"}}
    w._ddl(Action.RENAME_TABLES, "shop", "a", "RENAME TABLE `b` TO `d`, `a` TO `archive`.`log`", None)
    w.jobs[-1]["binlog"]["MultipleTableInfos"] = [info, log]
    found = plan(w, filter={"ignore-schemas": "archive"})[-1]
    assert found.sql == "RENAME TABLE `shop`.`b` TO `shop`.`d`"
    assert found.alert == "the renames of or to archive.log are left out"


def test_each_job_of_a_multi_table_drop_drops_its_own_table() -> None:  # issue 13.1
    w = shop()
    for table in ("a", "b"):
        w._ddl(Action.DROP_TABLE, "shop", table, "DROP TABLE `a`, `b`", dict(w.table("shop", table).raw))
    assert [ddl.sql for ddl in plan(w)[-2:]] == ["DROP TABLE `shop`.`a`", "DROP TABLE `shop`.`b`"]


def with_text(query: str) -> Workload:
    """A table gets a column `n` with the default 5 by a statement text that TiDB could not restore."""
    w = shop("a")
    info = {**w.table("shop", "a").raw}
    w.add_column("shop", "a", integer("n", default="5"))
    after = w.table("shop", "a").raw
    w._put("shop", info)
    w.logged, w.jobs = w.logged[:-2], w.jobs[:-1]
    w._ddl(Action.ADD_COLUMN, "shop", "a", query, after)
    return w


def test_text_of_another_sql_mode_is_interpreted_by_the_definitions() -> None:
    found = plan(with_text('ALTER TABLE a ADD COLUMN n INT DEFAULT "5"'))[-1]
    assert (found.sql, found.decision) == ("ALTER TABLE a ADD COLUMN n INT DEFAULT '5'", "apply")


def test_text_that_fits_no_sql_mode_is_refused_if_applied() -> None:
    query = 'ALTER TABLE a ADD COLUMN n INT DEFAULT "x"'
    found = plan(with_text(query), routes=[{"schema-pattern": "shop", "target-schema": "x"}])[-1]
    assert (found.decision, found.reason, found.sql) == ("refused", "a DDL's text fits no sql_mode", query)
    assert found.alert == found.reason
    assert [[(table.db, table.name) for table in side.tables] for side in (found.before, found.after)] == [
        [("x", "a")], [("x", "a")],
    ]  # fmt: skip


def test_dropped_database_includes_only_tables_routed_into_it_alone() -> None:  # R-15 R-28
    w = shop()
    w._ddl(Action.DROP_SCHEMA, "shop", "", "DROP DATABASE `shop`")
    rules = [
        {"schema-pattern": "shop", "target-schema": "x"},
        {"schema-pattern": "shop", "table-pattern": "b", "target-schema": "Elsewhere", "target-table": "b"},
    ]
    found = plan(w, routes=rules)[-1]
    assert (found.sql, found.decision) == ("DROP DATABASE `x`", "apply")
    assert [(table.db, table.name) for table in found.before.tables] == [("x", "a")]
    assert found.alert == "Elsewhere.b of another database stays at the target"
    assert plan(w, routes=rules[:1])[-1].alert == ""


def test_alerts_of_a_shared_target_name_the_tables() -> None:
    w = two_shards()
    w.truncate("s2", "t_2")
    shards = {"schema-pattern": "s?", "table-pattern": "t_*", "target-schema": "all", "target-table": "t"}
    assert plan(w, routes=[shards])[-1].alert == "s2.t_2 shares its target with other tables: its rows stay there"
    w.add_column("s1", "t_1", text("n"))
    at = w.add_column("s2", "t_2", integer("n"))
    with pytest.raises(SchemaError) as error:
        plan(w, routes=[shards])
    assert (error.value.where["commit_ts"], error.value.where["table"]) == (str(at), "s2.t_2")
    assert str(error.value.where["query"]).startswith("ALTER TABLE `t_2` ADD COLUMN `n`")
