"""A DDL at the target spells names as the definitions do, whatever the letter case in its text and its job."""

from __future__ import annotations

from typing import Any

import pytest
from support.tabledefs import col, table
from support.workload import Workload, integer, text

from binlake.config import Replication
from binlake.ddl.ddls import plan_ddls
from binlake.ddl.deciding import Spelling
from binlake.ddl.definitions import LandedDdl
from binlake.ddl.targets import Naming
from binlake.dialect import map_ddl
from binlake.dialect.definedclauses import put_stored_bounds
from binlake.dialect.tokens import render, tokenize
from binlake.lake.mutations import match_definitions
from binlake.rows.schema import Action, DdlJob, SchemaState, WindowDdl
from binlake.rows.schema.forms import fold_name
from binlake.rules import Rules
from binlake.window.cuts import build_ddl_batch
from binlake.wire import binlog_pb2 as pb


def plan(w: Workload, **config: Any) -> list[LandedDdl]:
    jobs = {job.id: job for job in (DdlJob.from_dict(raw) for raw in w.jobs)}
    found = [b for b in w.logged if b.tp == pb.Commit and b.ddl_job_id]
    binlogs = [
        WindowDdl(b.commit_ts, b.start_ts, b.ddl_job_id, b.ddl_schema_state, b.ddl_query.decode()) for b in found
    ]
    raw = {key.replace("_", "-"): value for key, value in config.items()}
    return plan_ddls(SchemaState(), binlogs, [(b.commit_ts, jobs[b.job_id]) for b in binlogs], build_rules(raw))


def build_rules(raw: dict[str, Any]) -> Rules:
    return Rules.of(Replication.model_validate({"name": "demo", "lake": {"path": "x"}, **raw}))


def run(ddl: LandedDdl) -> tuple[str, ...]:
    """The statements that the target runs."""
    return map_ddl(ddl, "mariadb").sql


def shop() -> Workload:
    w = Workload()
    w.create_database("Shop_A")
    w.create_database("ÜBERSICHT")
    w.create_table("Shop_A", "Users", [integer("Id"), text("Name")], ["Id"])
    return w


def target_statement(
    w: Workload, action: Action, query: str, info: dict[str, Any] | None = None, *, table: str = "Users"
) -> str:
    """The target's statement for one more DDL with that text."""
    w._ddl(action, "Shop_A", table, query, info or dict(w.table("Shop_A", "Users").raw))
    found = plan(w)[-1]
    assert (found.db, found.table) == ("Shop_A", table)
    use, statement = run(found)
    assert use == "USE `Shop_A`"
    return statement


@pytest.mark.parametrize(
    ("query", "statement"),
    [
        ("ALTER TABLE `users` ADD INDEX `i`(`name`)", "ALTER TABLE `Shop_A`.`Users` ADD INDEX `i`(`name`)"),
        ("CREATE INDEX `i` ON `SHOP_a`.`USERS` (`Name`)", "CREATE INDEX `i` ON `Shop_A`.`Users` (`Name`)"),
        ("ALTER TABLE `Users` ADD INDEX `i`(`name`)", "ALTER TABLE `Users` ADD INDEX `i`(`name`)"),
    ],
)
def test_statement_names_its_table_as_it_was_created(query: str, statement: str) -> None:  # issue 13.1
    assert target_statement(shop(), Action.ADD_INDEX, query) == statement


def test_truncate_and_drop_find_the_table_in_any_letter_case() -> None:  # issue 13.1: all rows stayed
    w = shop()
    new = {**w.table("Shop_A", "Users").raw, "id": 950}
    assert (
        target_statement(w, Action.TRUNCATE_TABLE, "TRUNCATE TABLE `uSERS`", new) == "TRUNCATE TABLE `Shop_A`.`Users`"
    )
    w = shop()
    dropped = target_statement(w, Action.DROP_TABLE, "DROP TABLE IF EXISTS `shop_a`.`users`, `shop_a`.`others`")
    assert dropped == "DROP TABLE IF EXISTS `Shop_A`.`Users`"
    w = shop()
    w._ddl(Action.DROP_SCHEMA, "Shop_A", "", "DROP DATABASE `SHOP_A`")
    assert run(plan(w)[-1]) == ("DROP DATABASE `Shop_A`",)


def test_table_created_in_a_database_spelled_in_another_case() -> None:
    w = Workload()
    w.create_database("ÜBERSICHT")
    w.create_table("ÜBERSICHT", "ΟΔΟΣ", [integer("Größe")])
    w.jobs[-1]["query"] = "unused"
    made = w.logged[-2]
    made.ddl_query = "CREATE TABLE `übersicht`.`ΟΔΟΣ` (`Größe` INT);".encode()
    w.logged[-1].ddl_query = made.ddl_query
    found = plan(w)[-1]
    assert run(found)[0] == "USE `ÜBERSICHT`"
    assert run(found)[1].startswith("CREATE TABLE `ÜBERSICHT`.`ΟΔΟΣ` (`Größe` INT)")
    info = {**w.table("ÜBERSICHT", "ΟΔΟΣ").raw, "id": 951}
    w._ddl(Action.TRUNCATE_TABLE, "ÜBERSICHT", "ΟΔΟΣ", "TRUNCATE TABLE `οδοσ`", info)
    assert run(plan(w)[-1])[1] == "TRUNCATE TABLE `ÜBERSICHT`.`ΟΔΟΣ`"


def test_rename_uses_the_stored_old_name_and_the_new_name_as_written() -> None:
    w = shop()
    info = {**w.table("Shop_A", "Users").raw, "name": {"O": "USERS_2", "L": "users_2"}}
    w._ddl(Action.RENAME_TABLE, "Shop_A", "Users", "RENAME TABLE `SHOP_a`.`USERS` TO `shop_A`.`USERS_2`", info)
    found = plan(w)[-1]
    assert found.sql == "RENAME TABLE `Shop_A`.`Users` TO `Shop_A`.`USERS_2`"
    assert found.touched == ["Shop_A.USERS_2", "Shop_A.Users"]
    w = shop()
    w._ddl(Action.RENAME_TABLE, "Shop_A", "Users", "ALTER TABLE `users` RENAME AS `USERS_2`", info)
    assert plan(w)[-1].sql == "ALTER TABLE `Shop_A`.`Users` RENAME AS `Shop_A`.`USERS_2`"


def test_rename_list_follows_the_names_it_has_assigned() -> None:
    w = shop()
    w.create_table("Shop_A", "New", [integer("Id")], ["Id"])
    old, new = (w.table("Shop_A", name).raw for name in ("Users", "New"))
    swapped = [{**old, "name": new["name"]}, {**new, "name": old["name"]}, {**old, "name": new["name"]}]
    query = "RENAME TABLE `users` TO `Tmp`, `new` TO `Users`, `TMP` TO `New`"
    w._ddl(Action.RENAME_TABLES, "Shop_A", "New", query, None)
    w.jobs[-1]["binlog"]["MultipleTableInfos"] = swapped
    assert plan(w)[-1].sql == (
        "RENAME TABLE `Shop_A`.`Users` TO `Shop_A`.`Tmp`, `Shop_A`.`New` TO `Shop_A`.`Users`,"
        " `Shop_A`.`Tmp` TO `Shop_A`.`New`"
    )


def test_view_spells_tables_and_qualified_columns_as_stored() -> None:
    w = shop()
    view = {**w.table("Shop_A", "Users").raw, "id": 960, "name": {"O": "V1", "L": "v1"}, "view": {"view_select": ""}}
    query = (
        "CREATE ALGORITHM = UNDEFINED DEFINER = CURRENT_USER SQL SECURITY DEFINER VIEW `shop_a`.`V1` AS"
        " SELECT `USERS`.`Name`,`shop_A`.`users`.`Id`,`K`.`Id` AS `x` FROM `shop_a`.`users` JOIN `uSers` AS `k`"
    )
    w._ddl(Action.CREATE_VIEW, "Shop_A", "V1", query, view)
    assert plan(w)[-1].sql == (
        "CREATE ALGORITHM = UNDEFINED DEFINER = CURRENT_USER SQL SECURITY DEFINER VIEW `Shop_A`.`V1` AS"
        " SELECT `Users`.`Name`,`Users`.`Id`,`k`.`Id` AS `x` FROM `Shop_A`.`Users` JOIN `Shop_A`.`Users` AS `k`"
    )


def test_view_replaced_under_another_spelling_leaves_no_second_one() -> None:
    w = shop()
    views = [
        {**w.table("Shop_A", "Users").raw, "id": 960 + n, "name": {"O": name, "L": "v1"}, "view": {"view_select": ""}}
        for n, name in enumerate(("V1", "v1"))
    ]
    for name, info in zip(("V1", "v1"), views, strict=True):
        w._ddl(Action.CREATE_VIEW, "Shop_A", name, f"CREATE OR REPLACE VIEW `{name}` AS SELECT `Id` FROM `Users`", info)
    made, replaced = plan(w)[-2:]
    assert made.sql == "CREATE OR REPLACE VIEW `V1` AS SELECT `Id` FROM `Users`;"
    assert replaced.sql == (
        "DROP VIEW IF EXISTS `Shop_A`.`V1`; CREATE OR REPLACE VIEW `v1` AS SELECT `Id` FROM `Users`;"
    )
    assert [text.split(" AS ")[0] for text in run(replaced)[1:]] == [
        "DROP VIEW IF EXISTS `Shop_A`.`V1`",
        "CREATE OR REPLACE VIEW `v1`",
    ]


def test_alter_database_without_a_name_means_the_jobs_database() -> None:
    # At the target, the session's database is that of the previous DDL
    w = shop()
    info = {"id": 2, "db_name": {"O": "Shop_A", "L": "shop_a"}, "charset": "utf8mb4", "collate": "utf8mb4_bin"}
    w._ddl(Action.SCHEMA_CHARSET, "Shop_A", "", "ALTER DATABASE CHARACTER SET = utf8mb4", db_info=info)
    found = plan(w)[-1]
    assert run(found) == ("ALTER DATABASE `Shop_A` CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",)
    routed = plan(w, routes=[{"schema-pattern": "shop_*", "target-schema": "All"}])[-1]
    assert run(routed)[0].startswith("ALTER DATABASE `All` CHARACTER SET")


def test_foreign_keys_and_like_spell_tables_as_stored() -> None:
    # MariaDB silently accepts a foreign key to a missing table
    w = shop()
    w.create_table("Shop_A", "Orders", [integer("Id"), integer("U")], ["Id"])
    query = "ALTER TABLE `orders` ADD CONSTRAINT `Fk` FOREIGN KEY (`U`) REFERENCES `users`(`id`)"
    w._ddl(Action.ADD_FOREIGN_KEY, "Shop_A", "Orders", query, dict(w.table("Shop_A", "Orders").raw))
    assert plan(w)[-1].sql.endswith("REFERENCES `Shop_A`.`Users`(`id`)")
    w.create_table("Shop_A", "Copy", [integer("Id"), text("Name")], ["Id"])
    for binlog in w.logged[-2:]:
        binlog.ddl_query = b"CREATE TABLE `shop_a`.`Copy` LIKE `SHOP_A`.`users`"
    assert plan(w)[-1].sql == "CREATE TABLE `Shop_A`.`Copy` LIKE `Shop_A`.`Users`"


def test_routes_filters_and_replacements_use_the_definitions_names() -> None:
    w = shop()
    index = w._ddl(Action.ADD_INDEX, "Shop_A", "Users", "ALTER TABLE `users` ADD INDEX `i`(`name`)",
                   dict(w.table("Shop_A", "Users").raw))  # fmt: skip
    routed = plan(w, routes=[{"schema-pattern": "shop_*", "target-schema": "All"}])[-1]
    assert (routed.db, routed.table, routed.sql) == ("All", "Users", "ALTER TABLE `All`.`Users` ADD INDEX `i`(`name`)")
    assert plan(w, filter={"ignore-table": [{"db-name": "SHOP_A", "tbl-name": "uSERS"}]})[-1].reason == "filtered"
    own = plan(w, ddl_replacement=[{"commit-ts": str(index), "sql": "CREATE INDEX i ON Users (Name)"}])[-1]
    batch, _ = build_ddl_batch(1, own, "mariadb")
    assert batch is not None
    assert batch.sql == ("USE `Shop_A`", "CREATE INDEX i ON Users (Name)")


@pytest.mark.parametrize(
    ("name", "folded"), [("ΟΔΟΣ", "οδοσ"), ("İlan", "ilan"), ("ẞTADT", "ßtadt"), ("ÄPFEL", "äpfel"), ("Users", "users")]
)
def test_names_are_compared_as_tidb_compares_them(name: str, folded: str) -> None:
    # the values of L in the jobs of the capture zones
    assert fold_name(name) == fold_name(folded) == folded


def test_partitions_are_found_by_their_folded_names() -> None:
    one = {"id": 900, "name": {"O": "P_ΟΔΟΣ", "L": "p_οδοσ"}, "less_than": ["1577836800"]}
    parts = table("t", col("id"), partition={"type": 1, "expr": "`id`", "definitions": [one]})
    text = "PARTITION `P_ΟΔΟΣ` VALUES LESS THAN (UNIX_TIMESTAMP('2020-01-01'))"
    assert render(put_stored_bounds(tokenize(text), parts)) == "PARTITION `P_ΟΔΟΣ` VALUES LESS THAN (1577836800)"


def test_table_recreated_in_another_case_keeps_its_history() -> None:
    # binlake audit row shows the rows of both spellings
    where = str(match_definitions([table("Users", col("id")), table("USERS", col("id"))]))
    assert "Users" in where
    assert "USERS" in where


@pytest.mark.parametrize(
    ("db", "name", "spelled"),
    [
        ("shop", "users", "Users"),
        # The job of a rename to another database.
        ("archive", "users", "USERS"),
        ("archive", "log", "log"),
    ],
)
def test_jobs_table_is_spelled_as_the_definition_with_its_name(db: str, name: str, spelled: str) -> None:
    touched = (table("Orders", db="Shop"), table("USERS", db="Old"), table("Users", db="Shop"))
    spelling = Spelling(SchemaState(), SchemaState(), Naming(build_rules({})))
    assert spelling.spell_job_table(db, name, touched) == (db, spelled)
