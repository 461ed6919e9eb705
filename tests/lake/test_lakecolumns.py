"""The code's names for the lake's columns equal those of the tables."""

from __future__ import annotations

import inspect

import pytest

from binlake.changes.net.columns import NET
from binlake.common import lakecolumns
from binlake.lake import controltables, tables
from binlake.rows.codec import MUTATION_SCHEMA
from binlake.window.events import EventRow

COLUMNS = {
    tables.BINLOG: lakecolumns.Binlog,
    tables.MUTATION: lakecolumns.Mutation,
    tables.DDL: lakecolumns.Ddl,
    tables.CHANGE: lakecolumns.Change,
    tables.STATEMENT: lakecolumns.Statement,
    controltables.WINDOW: lakecolumns.Window,
    controltables.PUMP_MEMBER: lakecolumns.PumpMember,
    controltables.SCHEMA_CHANGE: lakecolumns.SchemaChange,
    controltables.SCHEMA_SNAPSHOT: lakecolumns.SchemaSnapshot,
    controltables.MIRROR_VERSION: lakecolumns.MirrorVersion,
    controltables.MIRROR_HEAD: lakecolumns.MirrorHead,
    controltables.VERIFY: lakecolumns.Verify,
    controltables.VALIDATION: lakecolumns.Validation,
    controltables.BASE_CHUNK: lakecolumns.BaseChunk,
}


def names(columns: type) -> set[str]:
    found = {name: value for name, value in inspect.getmembers(columns) if name.isupper()}
    assert {name.lower() for name in found} == set(found.values())
    return set(found.values())


def test_every_table_is_listed() -> None:
    assert set(COLUMNS) == {*tables.STAGE_TABLES, *controltables.CONTROL_TABLES}


@pytest.mark.parametrize(("table", "columns"), COLUMNS.items(), ids=lambda value: getattr(value, "name", ""))
def test_names_equal_those_of_the_table(table: tables.LakeTable, columns: type) -> None:
    assert names(columns) == set(table.list_column_names())


def test_rows_in_memory_have_the_columns_of_their_table() -> None:
    assert MUTATION_SCHEMA.names == tables.MUTATION.list_column_names()
    assert set(NET.names) == set(tables.CHANGE.list_column_names()) - {lakecolumns.Change.WINDOW}
    assert set(EventRow.__annotations__) == set(controltables.WINDOW.list_column_names())
