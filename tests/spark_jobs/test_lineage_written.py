"""Lineage of a sink: columns in the form of target or mirror, and the source tables they come from; no Spark."""

from __future__ import annotations

from typing import Any

import pytest
from support.tabledefs import col, primary, table
from support.workload import Workload, integer, text

from binlake.config import Replication
from binlake.ddl.definitions import TableShape, WindowDefinitions
from binlake.ddl.targets import Naming, TargetTables
from binlake.lake.columntypes import list_delta_columns
from binlake.rows.schema import DdlJob, SchemaState, TableDef
from binlake.rows.schema import mysqltypes as t
from binlake.rules import Rules
from binlake.spark_jobs.job.lineage import Gathered, Sources, WindowLineage, build_target_column_lister
from binlake.spark_jobs.job.results import StageResult
from binlake.window.lineage import LINEAGE, MOST_COLUMNS


class One:
    """A base with one table."""

    def __init__(self, definition: TableDef) -> None:
        self._definition = definition

    def find(self, db: str, name: str) -> TableDef | None:
        del db, name
        return self._definition


def describe_table(definition: TableDef) -> dict[str, Any]:
    sources = Sources(Naming(Rules()), lambda: pytest.fail("without routes no schema is read"))
    found = WindowLineage(
        WindowDefinitions(One(definition), []), 9, sources, build_target_column_lister("mariadb")
    ).describe([("d", "item")])
    (one,) = found[LINEAGE]["wrote"]
    return dict(one)


def test_types_are_sql_types_and_generated_columns_have_no_source() -> None:
    elems = tuple(f"element {n}" for n in range(100))
    one = describe_table(
        table(
            "item",
            col("id", t.LONGLONG, unsigned=True, not_null=True),
            col("price", t.NEWDECIMAL, flen=12, decimal=2),
            col("name", t.VARCHAR, flen=64),
            col("note", t.MEDIUMBLOB),
            col("at", t.DATETIME, decimal=3),
            col("kind", t.ENUM, elems=elems),
            col("free", t.LONG, generated_expr_string="`price` is null", generated_stored=True),
            col("later", t.LONG, generated_expr_string="`id` + 1"),
            keys=(primary("id"),),
        )
    )
    types = dict(one["columns"])
    assert len(types.pop("kind")) == 200
    assert types == {
        "id": "bigint unsigned", "price": "decimal(12,2)", "name": "varchar(64)", "note": "mediumtext",
        "at": "datetime(3)", "free": "int", "later": "int",
    }  # fmt: skip
    assert one["copied"] == ["id", "price", "name", "note", "at", "kind"]
    (source,) = one["sources"]
    assert (source["db"], source["table"], source["columns"]) == ("d", "item", one["columns"])


def test_missing_target_columns_and_extra_columns_are_not_copied() -> None:  # S4-22
    definition = table("item", col("id", not_null=True), col("a"), col("b"), keys=(primary("id"),))
    one = describe_table(TableShape(own=("mine",), kept=("mine",), dropped=("b",)).apply_to(definition))
    assert one["columns"] == [["id", "int"], ["a", "int"], ["mine", ""]]
    assert one["copied"] == ["id", "a"]
    assert [name for name, _ in one["sources"][0]["columns"]] == ["id", "a", "b"]


def test_mirror_has_delta_types_and_its_own_columns() -> None:
    raw = col("raw", t.BLOB, charset="binary")
    definition = table("item", col("id", t.LONGLONG, unsigned=True), col("day", t.DATE), raw)
    assert list_delta_columns(definition) == [
        ("id", "decimal(20,0)"), ("day", "date"), ("raw", "binary"), ("_commit_ts", "long"), ("_rowkey", "string"),
        ("_copy", "integer"), ("_text", "map"),
    ]  # fmt: skip


def test_missing_or_too_wide_tables_are_reported_by_name_only() -> None:
    class Nothing:
        def find(self, db: str, name: str) -> TableDef | None:
            del db
            many = [col(f"c{n}") for n in range(MOST_COLUMNS + 1)]
            return table("wide", *many) if name == "wide" else None

    sources = Sources(Naming(Rules()), lambda: pytest.fail("without routes no schema is read"))
    told = WindowLineage(WindowDefinitions(Nothing(), []), 9, sources, build_target_column_lister("mysql")).describe(
        [("d", "wide"), ("d", "gone")]
    )
    gone, wide = told[LINEAGE]["wrote"]
    assert (gone["table"], gone["columns"], gone["sources"]) == ("gone", [], [])
    assert (wide["columns"], wide["copied"]) == ([], [])
    assert wide["sources"] == [{"db": "d", "table": "wide", "columns": []}]


def test_all_shards_are_named_with_their_columns() -> None:  # S4-03
    w = Workload()
    for name in ("s1", "s2"):
        w.create_database(name)
        w.create_table(name, f"t_{name}", [integer("id"), text("name")], ["id"])
    w.add_column("s2", "t_s2", integer("more"))
    route = {"schema-pattern": "s*", "table-pattern": "t_*", "target-schema": "xs", "target-table": "t"}
    route |= {"extract-schema": {"schema-regexp": "s(.)", "target-column": "c_schema"}}
    rules = Rules.of(Replication.model_validate({"name": "demo", "lake": {"path": "x"}, "routes": [route]}))
    jobs = [DdlJob.from_dict(raw) for raw in w.jobs]
    tables = TargetTables(SchemaState().fold(enumerate(jobs)), Naming(rules))
    sources = Sources(Naming(rules), lambda: tables)
    found = WindowLineage(WindowDefinitions(tables, []), 9, sources, build_target_column_lister("mysql")).describe(
        [("xs", "t")]
    )
    (one,) = found[LINEAGE]["wrote"]
    assert one["columns"] == [["id", "int"], ["name", "varchar(64)"], ["more", "int"], ["c_schema", "varchar(255)"]]
    assert one["copied"] == ["id", "name", "more"]
    assert [(s["db"], s["table"], len(s["columns"])) for s in one["sources"]] == [("s1", "t_s1", 2), ("s2", "t_s2", 3)]


def test_several_windows_report_each_table_once_in_its_last_form() -> None:
    def result(stage: str, *tables: tuple[str, str]) -> StageResult:
        wrote = [
            {"db": "d", "table": name, "columns": [[column, "int"]], "copied": [], "sources": []}
            for name, column in tables
        ]
        return StageResult(
            stage, "done", 1, 2, detail={"kept": stage, **({LINEAGE: {"wrote": wrote}} if wrote else {})}
        )

    first = [result("compact"), result("finalize", ("a", "old"), ("b", "b"))]
    found = Gathered([*first, result("finalize", ("a", "new")), result("compact")]).list_results()
    assert [one.detail["kept"] for one in found] == ["compact", "finalize", "finalize", "compact"]
    assert [LINEAGE in one.detail for one in found] == [False, False, True, False]
    wrote = found[2].detail[LINEAGE]["wrote"]
    assert {one["table"]: one["columns"] for one in wrote} == {"a": [["new", "int"]], "b": [["b", "int"]]}
    # Collect again from what was collected before.
    assert Gathered(found).list_results() == found
    assert Gathered().build_detail() == {}
