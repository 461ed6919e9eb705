"""Which version of which table the rows of a window have: what the schema files of a feed's files are made of."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from binlake.config.feed import Feed
from binlake.feed.files.versions import TableVersion
from binlake.lake.ddls import last_ddls
from binlake.rows.schema import TableDef
from binlake.window.definitions import LandedDdl
from spark_jobs.job.context import StageContext
from spark_jobs.tables.sinks import SinkWindow

Name = tuple[str, str]


def versions_of(ctx: StageContext, feed: Feed, window: SinkWindow, names: Collection[Name]) -> list[TableVersion]:
    """The versions that the rows of the tables `names` have, and one for each DDL of the feed's tables and databases.

    Raises SchemaError.
    """
    made = [version for ddl in window.ddls for version in _of_ddl(feed, ddl)]
    bounds = window.bounds
    new = {(version.db, version.table) for version in made if _is_new(window, version)}
    old = sorted(set(names) - new)
    last, start = last_ddls(ctx.paths, old, bounds.lo), _start(ctx, bounds.lo)
    before = [
        TableVersion.of(window.definitions.within(*name, bounds.lo + 1, bounds.hi + 1), last.get(name, start), 0)
        for name in old
    ]
    return [*before, *made]


def _is_new(window: SinkWindow, version: TableVersion) -> bool:
    """The table was not there at the window's begin."""
    return window.base.find(version.db, version.table) is None


def _of_ddl(feed: Feed, ddl: LandedDdl) -> Iterator[TableVersion]:
    query = (ddl.sql or ddl.query) if ddl.opens_segment else ""
    tables = {(table.db, table.name): table for table in (*ddl.before.tables, *ddl.after.tables) if _is_table(table)}
    for (db, name), table in tables.items():
        if feed.tables.matches(db, name):
            yield TableVersion.of(table, ddl.commit_ts, ddl.since, query, ddl.action)
    if query and ddl.db and not ddl.table and not tables and feed.tables.matches(ddl.db, ""):
        yield TableVersion(ddl.db, "", ddl.commit_ts, ddl.since, query, ddl.action)


def _is_table(table: TableDef) -> bool:
    return table.kind == "table"


def _start(ctx: StageContext, lo: int) -> int:
    """The start of the lake: the version of tables without a DDL since."""
    landed = ctx.windows.landed_range()
    return lo if landed is None else landed[0]
