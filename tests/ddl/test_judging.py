"""Which DDL run under filters and routes, with which text and which alert; no Spark, no server."""

from __future__ import annotations

from typing import Any

import pytest
from support.workload import Workload, integer, text

from binlake.config import Replication
from binlake.ddl.ddls import build_window_schemas, plan_ddls
from binlake.ddl.definitions import LandedDdl
from binlake.ddl.sharedrows import list_extras
from binlake.ddl.targets import Naming, TargetTables
from binlake.errors import ConfigError, SchemaError, TargetRefused
from binlake.rows.schema import Action, DdlJob, SchemaState, WindowDdl
from binlake.rules import Rules
from binlake.window.cuts import build_ddl_batch
from binlake.wire import binlog_pb2 as pb

SHARDS = {"schema-pattern": "s?", "table-pattern": "t_*", "target-schema": "all", "target-table": "t"}


def rules(**config: Any) -> Rules:
    raw = {key.replace("_", "-"): value for key, value in config.items()}
    return Rules.of(Replication.model_validate({"name": "demo", "lake": {"path": "x"}, **raw}))


def logged(w: Workload) -> tuple[list[WindowDdl], list[tuple[int, DdlJob]]]:
    jobs = {job.id: job for job in (DdlJob.from_dict(raw) for raw in w.jobs)}
    found = [b for b in w.logged if b.tp == pb.Commit and b.ddl_job_id]
    binlogs = [
        WindowDdl(b.commit_ts, b.start_ts, b.ddl_job_id, b.ddl_schema_state, b.ddl_query.decode().rstrip(";"))
        for b in found
    ]
    return binlogs, [(b.commit_ts, jobs[b.job_id]) for b in binlogs]


def plan(w: Workload, *ignored: int, **config: Any) -> list[LandedDdl]:
    return plan_ddls(SchemaState(), *logged(w), rules(**config), ignored)


def list_decisions(planned: list[LandedDdl]) -> list[tuple[str, str]]:
    return [(ddl.sql.split("(")[0].strip() if not ddl.reason else "-", ddl.reason) for ddl in planned]


def two_shards() -> Workload:
    w = Workload()
    w.create_database("s1")
    w.create_database("s2")
    w.create_table("s1", "t_1", [integer("id"), text("name")], ["id"])
    w.create_table("s2", "t_2", [integer("id"), text("name")], ["id"])
    return w


def rename(w: Workload, old: tuple[str, str], new: tuple[str, str], query: str) -> int:
    """RENAME TABLE of one table in the form of its job: the new database's id and name."""
    before = w.table(*old)
    info = {**before.raw, "name": {"O": new[1], "L": new[1].lower()}}
    del w._tables[old]
    w._put(new[0], info)
    return w._ddl(Action.RENAME_TABLE, new[0], new[1], query, info)


def test_shards_create_their_target_once_and_keep_each_others_rows() -> None:  # S4-03 R-15
    w = two_shards()
    w.truncate("s1", "t_1")
    w.drop_table("s2", "t_2")
    w.drop_table("s1", "t_1")
    planned = plan(w, routes=[SHARDS])
    assert [ddl.decision for ddl in planned] == ["apply", "apply", "apply", "skip", "skip", "skip", "apply"]
    assert planned[2].sql.startswith("CREATE DATABASE IF NOT EXISTS `all`; CREATE TABLE `all`.`t` (")
    assert (planned[2].db, planned[2].table, planned[2].touched) == ("all", "t", ["all.t"])
    assert [bool(ddl.alert) for ddl in planned] == [False, False, False, False, True, True, False]
    assert planned[4].before.tables == planned[4].after.tables == ()
    # The last shard drops the target as well.
    assert planned[6].sql == "DROP TABLE `all`.`t`"


def test_column_is_added_by_the_first_shard_and_dropped_by_the_last() -> None:  # S4-03 R-15
    w = two_shards()
    w.add_column("s1", "t_1", integer("n", default="5"))
    w.add_column("s2", "t_2", integer("n", default="5"))
    w.drop_column("s2", "t_2", "n")
    w.drop_column("s1", "t_1", "n")
    planned = plan(w, routes=[SHARDS])[4:]
    assert [ddl.decision for ddl in planned] == ["apply", "skip", "skip", "apply"]
    assert [ddl.sql.startswith("ALTER TABLE `all`.`t` ") for ddl in (planned[0], planned[3])] == [True, True]

    binlogs, jobs = logged(w)
    schemas = build_window_schemas(SchemaState(), binlogs, jobs)
    found = list_extras(schemas, Naming(rules(routes=[SHARDS])))
    places = [(x.db, x.since, x.until, x.values) for x in found]
    ts = [ddl.since for ddl in planned]
    # Rows of a shard that does not have the column, yet or any more (a drop starts before its binlog), get its default.
    assert places == [("s2", ts[0], ts[1], {"n": "5"}), ("s2", ts[2], ts[3], {"n": "5"})]


def test_incompatible_shards_stop_until_an_operator_decides() -> None:  # S4-03 R-15
    w = two_shards()
    w.add_column("s1", "t_1", integer("n"))
    odd = w.add_column("s2", "t_2", text("other"))
    with pytest.raises(SchemaError, match="differ in more than added columns") as error:
        plan(w, routes=[SHARDS])
    assert error.value.where["commit_ts"] == str(odd)
    assert "s1.t_1 lacks column other; s2.t_2 lacks column n" in error.value.message
    assert 'shard-mode = "optimistic"' in error.value.hint
    planned = plan(w, odd, routes=[SHARDS])
    assert planned[-1].reason == "ignore-txn-commit-ts"


def test_new_shard_with_another_shape_is_refused() -> None:
    w = two_shards()
    w.create_table("s2", "t_3", [integer("id"), text("x"), text("y")], ["id"])
    with pytest.raises(
        SchemaError, match=r"joins s1.t_1 .* another shape: it also has x, y and it lacks name"
    ) as error:
        plan(w, routes=[SHARDS])
    assert 'shard-mode = "optimistic"' in error.value.hint


def test_shards_without_a_joined_definition_are_left_to_the_operator() -> None:
    w = two_shards()
    w.add_column("s1", "t_1", integer("n"))
    w.add_column("s2", "t_2", text("n"))
    with pytest.raises(SchemaError, match="nor do they have a joined definition: column n") as error:
        plan(w, routes=[SHARDS])
    assert "ignore-txn-commit-ts" in error.value.hint


def test_shard_that_is_loaded_after_its_alter_widens_the_target() -> None:
    w = two_shards()
    # As a full load publishes it; the other shards' ALTER follows.
    w.create_table("s2", "t_3", [integer("id"), text("name"), integer("n", default="5")], ["id"])
    w.add_column("s1", "t_1", integer("n", default="5"))
    w.add_column("s2", "t_2", integer("n", default="5"))
    for mode in ("", "optimistic"):
        planned = plan(w, routes=[SHARDS], shard_mode=mode)[4:]
        assert [ddl.decision for ddl in planned] == ["apply", "skip", "skip"]
        assert planned[0].sql.startswith("ALTER TABLE `all`.`t` ADD COLUMN `n` int NULL DEFAULT 5")
    before, after = (side.tables[0] for side in (planned[0].before, planned[0].after))
    assert before.id == after.id
    binlogs, jobs = logged(w)
    schemas = build_window_schemas(SchemaState(), binlogs, jobs)
    found = list_extras(schemas, Naming(rules(routes=[SHARDS])))
    # Until their own ALTER, rows of the others get what the target's rows got.
    assert {(x.db, *x.values.items()) for x in found} == {("s1", ("n", "5")), ("s2", ("n", "5"))}


def test_other_default_than_that_of_a_loaded_shard_is_refused() -> None:
    w = two_shards()
    w.create_table("s2", "t_3", [integer("id"), text("name"), integer("n", default="5")], ["id"])
    w.add_column("s1", "t_1", integer("n", default="6"))
    with pytest.raises(SchemaError, match="column n: the table's rows have '5' at the target, but the DDL gives them"):
        plan(w, routes=[SHARDS])


def test_loaded_shard_that_cannot_join_is_named_and_its_way_on_works() -> None:
    w = two_shards()
    w.create_table("s2", "t_3", [integer("id"), integer("n")], ["id"])
    for mode in ("", "pessimistic"):
        with pytest.raises(SchemaError, match="another shape: it also has n and it lacks name") as stop:
            plan(w, routes=[SHARDS], shard_mode=mode)
    ahead = int(stop.value.where["commit_ts"])
    assert "filter.ignore-txn-commit-ts" in stop.value.hint
    for mode in ("", "pessimistic"):
        # The target has been altered by hand.
        assert plan(w, ahead, routes=[SHARDS], shard_mode=mode)[-1].decision == "skip"


def test_rename_that_keeps_the_targets_name_is_skipped() -> None:
    # The DDL model found that every target refuses RENAME TABLE To_log TO To_log (1050).
    w = Workload()
    w.create_database("s1")
    w.create_table("s1", "log", [integer("id")], ["id"])
    rename(w, ("s1", "log"), ("s1", "LOG"), "RENAME TABLE `s1`.`log` TO `s1`.`LOG`")
    one_name = {"schema-pattern": "s1", "table-pattern": "log", "target-schema": "s1", "target-table": "journal"}
    found = plan(w, routes=[one_name])[-1]
    assert (found.decision, found.reason) == ("skip", "the target's name of the table stays")
    assert [table.name for table in found.after.tables] == ["journal"]
    assert plan(w)[-1].decision == "apply"


def test_database_shared_by_other_routes_is_not_dropped() -> None:
    w = two_shards()
    w._ddl(Action.DROP_SCHEMA, "s1", "", "DROP DATABASE `s1`", db_info=None)
    planned = plan(w, routes=[{"schema-pattern": "s*", "target-schema": "all"}])
    # The second CREATE DATABASE finds the target's database, without an alert, because nothing is lost.
    assert [(ddl.decision, ddl.alert) for ddl in planned[:2]] == [("apply", ""), ("skip", "")]
    drop = planned[-1]
    assert drop.decision == "skip"
    assert "goes into the database all too" in drop.alert
    assert plan(w)[-1].sql == "DROP DATABASE `s1`"
    assert plan(w, routes=[{"schema-pattern": "s1", "target-schema": "x"}])[-1].sql == "DROP DATABASE `x`"


@pytest.mark.parametrize(
    ("old", "new", "reason", "alert", "opens"),
    [
        ("s1", "s2", "", "", True),
        ("s1", "tmp", "renamed out of the filter", "stays at the target", False),
        ("tmp", "s1", "renamed into the filter: the target does not have", "copy the table", True),
        ("tmp", "tmp2", "filtered", "", False),
    ],
    ids=["inside the filter", "out of the filter", "into the filter", "outside the filter"],
)
def test_rename_is_decided_by_both_names(old: str, new: str, reason: str, alert: str, opens: bool) -> None:
    w = Workload()
    for name in ("s1", "s2", "tmp", "tmp2"):
        w.create_database(name)
    w.create_table(old, "a", [integer("id")], ["id"])
    rename(w, (old, "a"), (new, "b"), f"RENAME TABLE `{old}`.`a` TO `{new}`.`b`")
    found = plan(w, filter={"ignore-schemas": "~^tmp"})[-1]
    assert found.reason.startswith(reason)
    assert bool(found.reason) is bool(reason)
    assert alert in found.alert
    assert bool(found.alert) is bool(alert)
    segments = [ddl.segment for ddl in plan(w, filter={"ignore-schemas": "~^tmp"})]
    assert (segments[-1] > segments[-2]) is opens


def test_table_renamed_into_the_filter_is_refused_until_it_is_copied() -> None:
    # Otherwise an older copy under that name would silently keep its rows (issue 13.2)
    w = Workload()
    for name in ("s1", "tmp"):
        w.create_database(name)
    w.create_table("tmp", "a", [integer("id")], ["id"])
    at = rename(w, ("tmp", "a"), ("s1", "b"), "RENAME TABLE `tmp`.`a` TO `s1`.`b`")
    only = {"filter": {"ignore-schemas": "tmp"}}
    assert (plan(w, **only)[-1].decision, plan(w, **only)[-1].touched) == ("refused", ["s1.b"])
    with pytest.raises(TargetRefused, match=rf"renamed into the filter.*commit_ts={at}") as stop:
        build_ddl_batch(1, plan(w, **only)[-1], "mariadb")
    assert "ignore-txn-commit-ts" in stop.value.hint
    copied = plan(w, at, **only)[-1]
    assert (copied.decision, copied.reason, copied.opens_segment) == ("skip", "ignore-txn-commit-ts", True)


def rotate_log(query: str = "RENAME TABLE `APP`.`log` TO `archive`.`log_1`") -> Workload:
    """Move app.Log to the archive, and create a new one."""
    w = Workload()
    for name in ("App", "archive"):
        w.create_database(name)
    w.create_table("App", "Log", [integer("id")], ["id"])
    rename(w, ("App", "Log"), ("archive", "log_1"), query)
    w.create_table("App", "Log", [integer("id")], ["id"])
    return w


def test_rotated_table_is_dropped_at_the_target_if_configured() -> None:  # issue 13.2
    kept = plan(rotate_log(), filter={"ignore-schemas": "archive"})
    assert [(ddl.decision, ddl.reason) for ddl in kept[3:]] == [("skip", "renamed out of the filter"), ("apply", "")]
    assert "stays at the target" in kept[3].alert
    dropped = plan(rotate_log(), filter={"ignore-schemas": "archive", "renamed-out": "drop"})[3]
    assert (dropped.sql, dropped.db, dropped.table, dropped.alert) == ("DROP TABLE `App`.`Log`", "App", "Log", "")
    assert (dropped.touched, dropped.after.tables, dropped.opens_segment) == (["App.Log"], (), True)
    batch, _ = build_ddl_batch(1, dropped, "mariadb")
    assert batch is not None
    assert batch.sql == ("USE `App`", "DROP TABLE `App`.`Log`")
    left = {"filter": {"ignore-schemas": "archive", "renamed-out": "drop"}, "loopback": {"loopback-control": True,
            "channel-id": 1, "sync-ddl": False}}  # fmt: skip
    assert "DROP" not in plan(rotate_log(), **left)[3].sql


def test_rename_list_that_replaces_a_filtered_table() -> None:  # issue 13.2
    w = rotate_log()
    w.create_table("App", "new", [integer("id")], ["id"])
    log, new = (w.table("App", name).raw for name in ("Log", "new"))
    query = "RENAME TABLE `app`.`log` TO `archive`.`log_2`, `app`.`new` TO `app`.`Log`"
    w._ddl(Action.RENAME_TABLES, "App", "new", query, None)
    moved = [{**log, "name": {"O": "log_2", "L": "log_2"}}, {**new, "name": {"O": "Log", "L": "log"}}]
    w.jobs[-1]["binlog"]["MultipleTableInfos"] = moved
    kept = plan(w, filter={"ignore-schemas": "archive"})[-1]
    assert kept.sql == "RENAME TABLE `App`.`new` TO `App`.`Log`"
    assert "left out" in kept.alert
    dropped = plan(w, filter={"ignore-schemas": "archive", "renamed-out": "drop"})[-1]
    assert dropped.sql == "DROP TABLE `App`.`Log`; RENAME TABLE `App`.`new` TO `App`.`Log`"
    batch, _ = build_ddl_batch(1, dropped, "mariadb")
    assert batch is not None
    assert batch.sql == ("USE `App`", "DROP TABLE `App`.`Log`", "RENAME TABLE `App`.`new` TO `App`.`Log`")


def test_event_filters_skip_ddl_and_keep_the_targets_tables() -> None:  # S4-04
    w = Workload()
    w.create_database("s1")
    w.create_table("s1", "a", [integer("id")], ["id"])
    w.add_column("s1", "a", integer("n"))
    w.truncate("s1", "a")
    w.drop_table("s1", "a")
    events = [{"schema-pattern": "s1", "table-pattern": "a", "events": ["truncate table", "drop table", "add column"],
               "action": "Ignore"}]  # fmt: skip
    planned = plan(w, filters=events)
    assert [ddl.reason for ddl in planned] == ["", "", *["event filter"] * 3]
    # The definition still follows the source, but no table is removed.
    assert [len(ddl.after.tables) for ddl in planned] == [0, 1, 1, 0, 0]
    assert [len(ddl.before.tables) for ddl in planned[3:]] == [0, 0]


def test_sync_ddl_off_leaves_ddl_to_the_other_side() -> None:
    w = Workload()
    w.create_database("retl")
    w.create_table("retl", "_drainer_repl_mark", [integer("id")], ["id"])
    w.create_database("s1")
    w.create_table("s1", "a", [integer("id")], ["id"])
    planned = plan(w, loopback={"loopback-control": True, "channel-id": 1, "sync-ddl": False})
    assert [ddl.reason for ddl in planned] == ["filtered", "filtered", "sync-ddl", "sync-ddl"]
    assert [ddl.segment for ddl in planned] == [0, 0, 1, 2]


def test_extract_columns_are_appended_to_rows_and_unique_keys() -> None:  # S4-03
    w = two_shards()
    w.create_table("s2", "t_u", [integer("id"), text("name")], [], ["name"])
    rule = {**SHARDS, "extract-schema": {"schema-regexp": "s(.)", "target-column": "c_schema"}}
    state = SchemaState().fold(logged(w)[1])
    tables = TargetTables(state, Naming(rules(routes=[{**rule, "table-pattern": "t_1"}])))
    merged = tables.find("ALL", "T")
    assert merged is not None
    assert [column.name for column in merged.row_columns] == ["id", "name", "c_schema"]
    assert merged.find_identity().columns == ("id", "c_schema")
    planned = plan(w, routes=[{**rule, "table-pattern": "t_1"}])
    assert (planned[2].reason, planned[2].alert) == ("extract columns", "create the table at the target by hand")
    clash = {**SHARDS, "extract-schema": {"schema-regexp": "s(.)", "target-column": "NAME"}}
    with pytest.raises(ConfigError, match="has the name of a column"):
        TargetTables(state, Naming(rules(routes=[clash]))).find("all", "t")


def test_extract_column_gets_the_name_of_the_feeders_source() -> None:  # S4-03
    w = two_shards()
    for job, source in zip(w.jobs[2:], ("shard-1", "shard-2"), strict=True):
        job["binlog"]["TableInfo"]["source_name"] = source
    rule = {**SHARDS, "extract-source": {"source-regexp": "shard-(.*)", "target-column": "c_source"}}
    schemas = build_window_schemas(SchemaState(), *logged(w))
    found = list_extras(schemas, Naming(rules(routes=[rule])))
    assert {(extra.db, extra.values["c_source"]) for extra in found} == {("s1", "1"), ("s2", "2")}
    # A table that shares its target with no other gets the column too, and no table without a route.
    alone = list_extras(schemas, Naming(rules(routes=[{**rule, "table-pattern": "t_1"}])))
    assert [(extra.db, extra.values) for extra in alone] == [("s1", {"c_source": "1"})]
    assert list_extras(schemas, Naming(rules())) == []
    plain = list_extras(build_window_schemas(SchemaState(), *logged(two_shards())), Naming(rules(routes=[rule])))
    assert {extra.values["c_source"] for extra in plain} == {""}


def test_dropping_changes_of_a_table_with_two_unique_keys_needs_consent() -> None:
    w = Workload()
    w.create_database("s1")
    w.create_table("s1", "a", [integer("id"), text("u")], ["id"], ["u"])
    table = w.table("s1", "a")
    deletes = [{"schema-pattern": "s1", "table-pattern": "a", "events": ["delete"], "action": "Ignore"}]
    with pytest.raises(ConfigError, match="more than one unique key"):
        rules(filters=deletes).list_passed_kinds(table)
    assert rules(filters=deletes, filter={"kept-rows": "replace"}).list_passed_kinds(table) == {"insert", "update"}
    inserts = [{**deletes[0], "events": ["insert"]}]
    assert rules(filters=inserts).list_passed_kinds(table) == {"update", "delete"}
    assert rules(filters=[{**deletes[0], "events": ["all dml"]}]).list_passed_kinds(table) == frozenset()
    expression = [{"schema": "s1", "table": "a", "delete-value-expr": "id = 1"}]
    with pytest.raises(ConfigError, match="drops delete"):
        rules(expression_filter=expression).list_passed_kinds(table)


def test_keeping_rows_despite_truncate_needs_one_unique_key() -> None:
    w = Workload()
    w.create_database("s1")
    w.create_table("s1", "a", [integer("id"), text("u")], ["id"], ["u"])
    w.truncate("s1", "a")
    rule = {"schema-pattern": "s1", "table-pattern": "a", "events": ["truncate table"], "action": "Ignore"}
    with pytest.raises(ConfigError, match="more than one unique key"):
        plan(w, filters=[rule])
    assert plan(w, filters=[rule], filter={"kept-rows": "replace"})[-1].reason == "event filter"


def test_filters_on_keyless_tables_may_not_change_rows_that_were_dropped() -> None:  # S4-04
    w = Workload()
    w.create_database("s1")
    w.create_table("s1", "log", [text("line")], [])
    table = w.table("s1", "log")
    rule = {"schema-pattern": "s1", "table-pattern": "log", "action": "Ignore"}
    for events in (["insert"], ["update"]):
        with pytest.raises(ConfigError, match="without a key"):
            rules(filters=[{**rule, "events": events}]).list_passed_kinds(table)
    assert rules(filters=[{**rule, "events": ["update", "delete"]}]).list_passed_kinds(table) == {"insert"}
    assert rules(filters=[{**rule, "events": ["delete"]}]).list_passed_kinds(table) == {"insert", "update"}
    expression = [{"schema": "s1", "table": "log", "insert-value-expr": "line = 'x'"}]
    with pytest.raises(ConfigError, match="without a key"):
        rules(expression_filter=expression).list_passed_kinds(table)


def test_tables_of_a_shared_target_must_spell_columns_alike() -> None:  # S4-03 R-15
    w = two_shards()
    w.create_table("s2", "t_3", [integer("ID"), text("name")], ["ID"])
    state = SchemaState().fold(logged(w)[1])
    with pytest.raises(SchemaError, match="spell a column differently"):
        TargetTables(state, Naming(rules(routes=[SHARDS]))).find("all", "t")


def test_mode_ordered_with_row_filters_needs_safe_mode() -> None:  # S4-04 S4-43
    rule = {"schema-pattern": "s1", "table-pattern": "a", "events": ["delete"], "action": "Ignore"}
    for mode, safe in (("ordered", "always"), ("parallel", "auto")):
        rules(filters=[rule], target={"mode": mode, "safe-mode": safe})
    with pytest.raises(ValueError, match="needs safe-mode = always"):
        rules(filters=[rule], target={"mode": "ordered", "safe-mode": "auto"})
