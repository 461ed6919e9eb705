"""How the target's tables differ from the source's, asked once a window: when compact derives it at the target's lo.

Later stages, and every rerun of a window that is open or passed, take what compact wrote down: in the middle of a
window its own DDL has run on a part of the target only.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import closing

from binlake.config.model import Target
from binlake.downstream import Position, Session
from binlake.downstream.definitions import expected_of, read
from binlake.downstream.shape import Name, TableShape, option_of, shape_of
from binlake.downstream.shapes import Shapes
from binlake.schema import TableDef
from spark_jobs.context import Bounds, StageContext
from spark_jobs.pinned import start_of
from spark_jobs.sinks import SinkWindow


def shapes_for(ctx: StageContext, window: SinkWindow, touched: Iterable[Name], position: Position) -> Shapes:
    """The shapes of the tables `touched` by rows or DDL of the window: read now if it is the target's next one."""
    target = ctx.replication.target
    if target is None:
        return Shapes()
    if position.window is not None or start_of(ctx, position) != window.bounds.lo:
        # Whatever the configuration says by now: the window was sealed with these.
        return recorded_shapes(ctx, window.bounds)
    if not _may_differ(target):
        return Shapes()
    ddls = {(table.db, table.name) for ddl in window.cuts for table in ddl.before.tables}
    found = (window.definitions.at(*name, window.bounds.lo) for name in sorted({*touched, *ddls}))
    wanted = [t for t in found if t is not None and (target.sync_mode == 2 or _is_preserved(target, t))]
    return Shapes(_read(target, wanted))


def recorded_shapes(ctx: StageContext, bounds: Bounds) -> Shapes:
    """The shapes that compact wrote down for just this window; none when it did not run."""
    events = ctx.windows.events(stage="compact", within=(bounds.lo, bounds.hi))
    found = [event for event in events if (event["lo"], event["hi"]) == (bounds.lo, bounds.hi)]
    return Shapes.from_list(json.loads(found[-1]["detail"]).get("shapes", ())) if found else Shapes()


def _may_differ(target: Target) -> bool:
    return target.sync_mode == 2 or any(option.preserve for option in target.tables)


def _is_preserved(target: Target, table: TableDef) -> bool:
    option = option_of(target, (table.db, table.name))
    return option is not None and option.preserve


def _read(target: Target, tables: list[TableDef]) -> dict[Name, TableShape]:
    expected = expected_of(tables, target.db_type)
    with closing(Session(target)) as session:
        actual = read(session, expected.names, target.db_type)
    shapes = {}
    for name, form in expected.tables.items():
        there = actual.tables.get(name)
        if form is not None and there is not None:
            shapes[name] = shape_of(form, there, option_of(target, name), target.sync_mode)
    return {name: shape for name, shape in shapes.items() if shape}
