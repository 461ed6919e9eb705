"""Creates, changes and removes the files of feeds, and what belongs to a feed beside its file.

Rule: nothing is written before all that can be checked has been; what was written last is taken away last, so that a
command that was killed can be run again.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from binlake import tso
from binlake.cluster.placement import open_placement
from binlake.config.feed import Feed
from binlake.config.feedfiles import feed_file, write_feed_file
from binlake.config.model import Replication
from binlake.errors import BinlakeError, ConfigError, Permanent, SourceUnavailable
from binlake.feed.changefeed.place import Place
from binlake.feed.changefeed.section import keys_of, make_section
from binlake.feed.checks import FeedReport, check_tables, landed_tables, require_servers_answer
from binlake.feed.sink import forget_position
from binlake.feed.state import read_progress, read_state, record_pause, record_removal, record_resume, require_in_lake
from binlake.lake.lock import lake_lock
from binlake.lake.paths import LakePaths
from binlake.lake.tables import message_table
from binlake.lake.windowlog import WindowLog
from binlake.pipeline import feed_lock


def windows_of(replication: Replication) -> WindowLog:
    """The window log of its lake."""
    return WindowLog(LakePaths.of(replication))


def start_ts_of(place: Place, given: int) -> str:
    """Where a new feed begins: `given`, or (0) now by PD; empty (with the first window) where there is no lake yet.

    Raises LostRange for what the lake does not hold, ConfigError for a future one.
    """
    windows, source = windows_of(place.replication), place.replication.source
    if given:
        require_in_lake(windows, "", given)
    if not windows.exists():
        return str(given or "")
    try:
        with open_placement(source) as placement:
            now = placement.pd.tso()
    except SourceUnavailable as error:
        if given:
            return str(given)
        raise ConfigError(
            f"PD does not say what time it is: {error.message}", where=error.where,
            hint="name the start: --start-ts TS",
        ) from None  # fmt: skip
    if given > now:
        raise ConfigError(
            "the start-ts is in the future", where={"start_ts": given, "time": tso.to_datetime(given), "now": now}
        )
    return str(given or now)


def check_feed(place: Place, feed: Feed, *, unreachable_ok: bool) -> FeedReport | None:
    """Its tables, as they are at the end of the lake, brokers and registry; None where there is no lake yet.

    Raises the first thing that is wrong.
    """
    if not unreachable_ok:
        try:
            require_servers_answer(feed)
        except BinlakeError as error:
            hint = f"{error.hint}; --unreachable-ok stores the changefeed anyway"
            raise type(error)(error.message, where=error.where, hint=hint.removeprefix("; ")) from None
    tables = landed_tables(place.replication)
    if tables is None:
        return None
    report = check_tables(feed, tables, place.replication.feed)
    if report.refused:
        first, others = report.refused[0], len(report.refused) - 1
        raise ConfigError(
            first.message, where={**first.where, **({"and_others": others} if others else {})}, hint=first.hint
        )
    return report


def store_new(place: Place, feed: Feed) -> Path:
    """Write the file of a new feed; what a former one of its name has left is no part of it. Raises ConfigError."""
    if any(feed.name == one.name for one in place.replication.feed):
        raise ConfigError(
            "a changefeed with this id exists already", where={"id": feed.name, "replication": place.replication.name},
            hint="choose another --changefeed-id, or `binlake changefeed update`",
        )  # fmt: skip
    windows = windows_of(place.replication)
    if windows.exists():
        state = read_state(windows, feed.name)
        if state.state != "removed" and (state.number or read_progress(windows, feed.name).encoded is not None):
            record_removal(windows, feed.name, reason="its section was taken away by hand")
        if read_state(windows, feed.name).number:
            record_resume(windows, feed.name, reason="created")
    path = feed_file(place.file, place.replication.name, feed.name)
    write_feed_file(path, feed)
    return path


def require_own_file(place: Place, feed: str) -> Path:
    """The file of the feed. Raises ConfigError for one that is a section of the replication's own file."""
    place.replication.feed_of(feed)
    path = feed_file(place.file, place.replication.name, feed)
    if not path.is_file():
        raise ConfigError(
            "this changefeed is a section [[feed]] of its replication", where={"id": feed, "file": place.file},
            hint="change or remove that section",
        )  # fmt: skip
    return path


def move_feed(place: Place, feed: Feed, path: Path, ts: str) -> Feed:
    """The feed goes on behind `ts` (commit_ts), whatever it has sent: as if it had just been created there.

    Raises ConfigError for a feed that works or ends before, what `forget_position` raises.
    """
    windows = windows_of(place.replication)
    state = read_state(windows, feed.name)
    if state.works:
        raise ConfigError(
            "only a stopped changefeed can be moved", where={"id": feed.name, "state": state.state},
            hint=f"`binlake changefeed pause -c {feed.name}` first",
        )  # fmt: skip
    moved = make_section({"start-ts": ts}, "", keys_of(feed))
    forget_position(feed, place.replication.name, state.life)
    write_feed_file(path, moved)
    record_removal(windows, feed.name, reason=f"moved to {ts}")
    return moved


def remove_feed(place: Place, feed: Feed, path: Path, *, force: bool) -> list[str]:
    """End the feed: its state, its messages in the lake, its position at the sink, its file; what stays, in words.

    `force`: also where the sink does not answer. Raises LeaseHeld while it is encoded, Transient, Permanent.
    """
    stays = [
        "its topics or files with all messages", "the registry's subjects", "its past events in the table `window`",
    ]  # fmt: skip
    windows, paths, life = windows_of(place.replication), LakePaths.of(place.replication), 0
    if windows.exists():
        # No task begins to publish once its position is gone.
        life = record_pause(windows, feed.name, reason="it is being removed").life
    try:
        forget_position(feed, place.replication.name, life)
    except BinlakeError as error:
        if not force:
            raise Permanent(
                f"its position cannot be taken away: {error.message}", where=error.where,
                hint="the changefeed is stopped; --force removes it and leaves the position, which no later one reads",
            ) from None  # fmt: skip
        stays.append(f"its position at the sink ({error.message})")
    if windows.exists():
        with lake_lock(paths, feed_lock(feed.name)):
            record_removal(windows, feed.name, reason="removed by command")
            shutil.rmtree(paths.table(message_table(feed.name).name), ignore_errors=True)
    path.unlink()
    return stays
