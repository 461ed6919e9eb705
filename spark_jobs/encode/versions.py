"""Which table versions the rows of a window have; a feed's schema files are made from them."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow.dataset as ds

from binlake.base.lakecolumns import Message
from binlake.config.feed import FeedSection
from binlake.ddl.definitions import LandedDdl
from binlake.feed.files.versions import TableVersion
from binlake.feed.formats import DELETE, INSERT, UPDATE
from binlake.lake.dataset import open_dataset
from binlake.lake.ddls import find_last_ddls
from binlake.lake.opentable import open_known
from binlake.lake.tables import build_message_table
from binlake.rows.schema import TableDef
from binlake.spark_jobs.job.context import Bounds, StageContext
from binlake.spark_jobs.tables.sinks import SinkWindow

Name = tuple[str, str]


def list_versions(ctx: StageContext, feed: FeedSection, window: SinkWindow) -> list[TableVersion]:
    """The versions that the feed's rows of the window have, and one for each DDL of the feed's tables.

    Raises SchemaError.
    """
    from_ddl = [version for ddl in window.ddls for version in _derive_ddl_versions(feed, ddl)]
    bounds = window.bounds
    new = {(version.db, version.table) for version in from_ddl if _is_new(window, version)}
    old = sorted(_read_names(ctx, feed, bounds) - new)
    last, start = find_last_ddls(ctx.paths, old, bounds.lo), _start(ctx, bounds.lo)
    before = [
        TableVersion.of(
            window.definitions.require_definition_within(*name, bounds.lo + 1, bounds.hi + 1), last.get(name, start), 0
        )
        for name in old
    ]
    return [*before, *from_ddl]


def _read_names(ctx: StageContext, feed: FeedSection, bounds: Bounds) -> set[Name]:
    """(db, table) of the row changes among the window's messages."""
    data = open_dataset(open_known(ctx.paths.locate_table(build_message_table(feed.name).name)))
    columns = [Message.DB, Message.TABLE]
    own = (ds.field(Message.WINDOW) == bounds.window) & ds.field(Message.OP).isin([INSERT, UPDATE, DELETE])
    names = data.to_table(columns=columns, filter=own).group_by(columns).aggregate([])
    return {(name[Message.DB], name[Message.TABLE]) for name in names.to_pylist()}


def _is_new(window: SinkWindow, version: TableVersion) -> bool:
    """True if the table did not exist at the start of the window."""
    return window.base.find(version.db, version.table) is None


def _derive_ddl_versions(feed: FeedSection, ddl: LandedDdl) -> Iterator[TableVersion]:
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
    """The start of the lake, which is the version of tables without a later DDL."""
    landed = ctx.windows.find_landed_range()
    return lo if landed is None else landed[0]
