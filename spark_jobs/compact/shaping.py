"""How the target's tables differ from the source's, asked once a window: when compact derives it at the target's lo.

Later stages, and every rerun of a window that is open or passed, take what compact sealed: in the middle of a window
its own DDL has run on a part of the target only.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing

from binlake.config.model import Target
from binlake.rows.schema import TableDef
from binlake.target import Session
from binlake.target.definitions.definitions import expect_tables, read_definitions
from binlake.target.definitions.forms import Name
from binlake.target.definitions.shape import derive_shape, find_option
from binlake.window.shapes import Shapes, TableShape
from spark_jobs.tables.sinks import SinkWindow


def read_shapes(target: Target, window: SinkWindow, touched: Iterable[Name]) -> Shapes:
    """The shapes that the tables `touched` by rows or DDL of the window have at the target now: at its lo."""
    if not may_differ(target):
        return Shapes()
    ddls = {(table.db, table.name) for ddl in window.cuts for table in ddl.before.tables}
    found = (window.definitions.at(*name, window.bounds.lo) for name in sorted({*touched, *ddls}))
    wanted = [t for t in found if t is not None and (target.sync_mode == 2 or _is_preserved(target, t))]
    return Shapes(_read(target, wanted))


def may_differ(target: Target) -> bool:
    """True when the configuration lets a table of the target have another shape."""
    return target.sync_mode == 2 or any(option.preserve for option in target.tables)


def _is_preserved(target: Target, table: TableDef) -> bool:
    option = find_option(target, (table.db, table.name))
    return option is not None and option.preserve


def _read(target: Target, tables: list[TableDef]) -> dict[Name, TableShape]:
    expected = expect_tables(tables, target.db_type)
    with closing(Session(target)) as session:
        actual = read_definitions(session, expected.names, target.db_type)
    shapes = {}
    for name, form in expected.tables.items():
        there = actual.tables.get(name)
        if form is not None and there is not None:
            shapes[name] = derive_shape(form, there, find_option(target, name), target.sync_mode)
    return {name: shape for name, shape in shapes.items() if shape}
