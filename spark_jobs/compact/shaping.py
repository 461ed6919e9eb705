"""How the target's tables differ from the source's: read once a window, when compact derives it with the target at lo.

Later stages, and every rerun of a window that is open or passed, use what compact sealed: in the middle of a window its
DDL has run only on a part of the target.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing

from binlake.config.servers import TargetSection
from binlake.ddl.definitions import Shapes, TableShape
from binlake.rows.schema import TableDef
from binlake.spark_jobs.tables.sinks import SinkWindow
from binlake.target import TargetSession
from binlake.target.definitions.definitions import expect_tables, read_definitions
from binlake.target.definitions.forms import Name
from binlake.target.definitions.structure import derive_shape, find_option


def read_shapes(target: TargetSection, window: SinkWindow, touched: Iterable[Name]) -> Shapes:
    """The present shapes at the target (which is at the window's lo) of tables that the window's rows or DDL touch."""
    if not may_differ(target):
        return Shapes()
    ddls = {(table.db, table.name) for ddl in window.cuts for table in ddl.before.tables}
    at_lo = (window.definitions.find_at(*name, window.bounds.lo) for name in sorted({*touched, *ddls}))
    wanted = [t for t in at_lo if t is not None and (target.sync_mode == 2 or _is_preserved(target, t))]
    return Shapes(_read(target, wanted))


def may_differ(target: TargetSection) -> bool:
    """True when the configuration allows a table of the target to have another shape."""
    return target.sync_mode == 2 or any(option.preserve for option in target.tables)


def _is_preserved(target: TargetSection, table: TableDef) -> bool:
    option = find_option(target, (table.db, table.name))
    return option is not None and option.preserve


def _read(target: TargetSection, tables: list[TableDef]) -> dict[Name, TableShape]:
    expected = expect_tables(tables, target.db_type)
    with closing(TargetSession(target)) as session:
        actual = read_definitions(session, expected.names, target.db_type)
    shapes = {}
    for name, form in expected.tables.items():
        there = actual.tables.get(name)
        if form is not None and there is not None:
            shapes[name] = derive_shape(form, there, find_option(target, name), target.sync_mode)
    return {name: shape for name, shape in shapes.items() if shape}
