"""Maintains the feeds' tables: deletes old published messages and joins small files.

Rule: unpublished messages stay, however old they are, even if the feed's section is gone. Only a removed feed has
nothing left to send (hazards R-26).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa
from deltalake import DeltaTable

from binlake import tso
from binlake.common.lakecolumns import Message
from binlake.feed.state import find_greatest_hi_of_feed, read_state
from binlake.lake.lock import build_commit_properties, hold_lake_lock
from binlake.lake.opentable import is_table, load_table
from binlake.lake.paths import LakePaths
from binlake.lake.store import list_folders
from binlake.lake.tables import MESSAGE, WORKING_DAYS, build_message_table
from binlake.lake.windowlog import WindowLog
from binlake.pipeline import name_feed_lock

_DAY_MS = 86_400_000
_AT_ONCE = 500
"""The number of windows per commit."""
_NOTE = build_commit_properties({"userMetadata": '{"stage": "maintain"}'})


@dataclass(frozen=True)
class Tidied:
    """The counts for a feed's table: small files `joined`, files `dropped`, `windows` with deleted rows."""

    joined: int = 0
    dropped: int = 0
    windows: int = 0


def list_feeds_in_lake(paths: LakePaths, configured: Iterable[str]) -> list[str]:
    """The feeds that have a table, whether `configured` or not."""
    names = sorted({*configured, *list_folders(paths.locate_table(MESSAGE.name))})
    return [name for name in names if is_table(paths.locate_table(build_message_table(name).name))]


def tidy_feed(paths: LakePaths, windows: WindowLog, feed: str, landed_ts: int) -> Tidied:
    """Delete old published messages, join small files, delete expired files. Safe while publish runs.

    Raises LeaseHeld.
    """
    path = paths.locate_table(build_message_table(feed).name)
    with hold_lake_lock(paths, name_feed_lock(feed)):
        table = load_table(path)
        expired = find_expired_windows(table, windows, feed, landed_ts)
        for start in range(0, len(expired), _AT_ONCE):
            names = ", ".join(f"'{name}'" for name in expired[start : start + _AT_ONCE])
            table.delete(f"{Message.WINDOW} IN ({names})", commit_properties=_NOTE)
        joined = table.optimize.compact(commit_properties=_NOTE)["numFilesRemoved"]
        dropped = table.vacuum(retention_hours=24 * MESSAGE.kept_days, dry_run=False, full=False)
        table.create_checkpoint()
        table.cleanup_metadata()
    return Tidied(int(joined), len(dropped), len(expired))


def find_expired_windows(table: DeltaTable, windows: WindowLog, feed: str, landed_ts: int) -> list[str]:
    """The windows in a feed's table that are no longer needed: published and WORKING_DAYS older than the landed ts."""
    state = read_state(windows, feed)
    published = find_greatest_hi_of_feed(windows, "publish", feed, state)
    end = tso.compose(max(tso.extract_physical(landed_ts) - WORKING_DAYS * _DAY_MS, 0))
    if state.state != "removed":
        end = min(end, published or 0)
    adds = pa.table(table.get_add_actions(flatten=True))
    windows_in_table = set(adds.column(f"partition.{Message.WINDOW}").to_pylist()) if adds.num_rows else set()
    return sorted(name for name in windows_in_table if int(name.partition("-")[2]) <= end)
