"""Creates, changes and removes feeds: their files, state, messages and positions, in the replication of their source.

Rule: everything is checked before the first write. A feed's file is written last and removed last, so that a killed
command can be repeated.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from binlake import tso
from binlake.cluster.placement import open_placement
from binlake.config.feed import FeedSection
from binlake.config.load import find_replications, find_replications_folder, load_replication
from binlake.config.model import Replication
from binlake.config.sidefiles import build_feed_path, write_feed_file
from binlake.config.sinkuri import list_storage_warnings
from binlake.errors import BinlakeError, ConfigError, Permanent, SourceUnavailable
from binlake.extras.changefeed.section import build_section, dump_section_keys
from binlake.feed.checks import FeedReport, check_tables, read_landed_tables, require_servers_answer
from binlake.feed.sink import adopt_position, forget_position
from binlake.feed.state import read_progress, read_state, record_pause, record_removal, record_resume, require_in_lake
from binlake.lake.lock import hold_lake_lock
from binlake.lake.opentable import delete_table
from binlake.lake.paths import LakePaths
from binlake.lake.tables import build_message_table
from binlake.lake.windowlog import WindowLog
from binlake.pipeline import name_feed_lock

_PD_PORT = 2379


class LoadedReplication(NamedTuple):
    """A replication and its file."""

    file: Path
    replication: Replication


def find_replication_file(pd: str, file: str) -> LoadedReplication:
    """The replication of `--replication FILE` or of `--pd URLS`; without both, the only one in the folder.

    Raises ConfigError unless exactly one matches.
    """
    if file:
        chosen = LoadedReplication(Path(file), load_replication(file, secrets=False))
        if pd and not _shares_pd(pd, chosen.replication):
            raise ConfigError(
                "the replication has another PD", where={"pd": pd, "replication": chosen.replication.name,
                "pd-urls": ",".join(chosen.replication.source.pd_urls)}, hint="omit --pd",
            )  # fmt: skip
        return chosen
    folder = find_replications()
    matching = [LoadedReplication(*item) for item in folder.good.items() if not pd or _shares_pd(pd, item[1])]
    if len(matching) == 1:
        return matching[0]
    names = ", ".join(chosen.replication.name for chosen in matching)
    broken = f"; not readable: {', '.join(path.name for path in folder.broken)}" if folder.broken else ""
    raise ConfigError(
        "several replications have this PD" if matching else "no replication has this PD",
        where={"pd": pd or "any", "folder": find_replications_folder(), "found": names or "none"},
        hint=f"give its file: --replication FILE{broken}",
    )


def _shares_pd(pd: str, replication: Replication) -> bool:
    addresses = {_parse_address(url) for url in replication.source.pd_urls}
    return not addresses.isdisjoint(_parse_address(url) for url in pd.split(",") if url.strip())


def _parse_address(url: str) -> tuple[str, int]:
    try:
        parts = urlsplit(url.strip() if "://" in url else f"http://{url.strip()}")
        return (parts.hostname or "").lower(), parts.port or _PD_PORT
    except ValueError as error:
        raise ConfigError(f"--pd is not an address: {error}", hint="http://127.0.0.1:2379") from None


def open_window_log(replication: Replication) -> WindowLog:
    """The window log of the replication's lake."""
    return WindowLog(LakePaths.of(replication))


def start_ts_of(file: LoadedReplication, start_ts: int) -> str:
    """The start of a new feed: `start_ts`, or if 0 the present time of PD; "" (the first window) without a lake.

    Raises LostRange for a start before the lake's, ConfigError for a start in the future.
    """
    windows, source = open_window_log(file.replication), file.replication.source
    if start_ts:
        require_in_lake(windows, "", start_ts)
    if not windows.exists():
        return str(start_ts or "")
    try:
        with open_placement(source) as placement:
            now = placement.pd.fetch_ts()
    except SourceUnavailable as error:
        if start_ts:
            return str(start_ts)
        raise ConfigError(
            f"PD does not report the time: {error.message}", where=error.where,
            hint="give the start: --start-ts TS",
        ) from None  # fmt: skip
    if start_ts > now:
        raise ConfigError(
            "the start-ts is in the future", where={"start_ts": start_ts, "time": tso.to_datetime(start_ts), "now": now}
        )
    return str(start_ts or now)


def check_feed(file: LoadedReplication, feed: FeedSection, *, unreachable_ok: bool) -> FeedReport:
    """Check the feed's brokers, its registry and its tables at the end of the lake, if anything has landed.

    Raises the first problem.
    """
    if not unreachable_ok:
        try:
            require_servers_answer(feed)
        except BinlakeError as error:
            hint = f"{error.hint}; --unreachable-ok stores the changefeed anyway"
            raise type(error)(error.message, where=error.where, hint=hint.removeprefix("; ")) from None
    tables = read_landed_tables(file.replication)
    if tables is None:
        known = list_storage_warnings(feed.sink.storage)
        return FeedReport(feed.name, warnings=("nothing has landed yet, so its first window checks its tables", *known))
    report = check_tables(feed, tables, file.replication.feed)
    if report.refused:
        first, others = report.refused[0], len(report.refused) - 1
        raise ConfigError(
            first.message, where={**first.where, **({"and_others": others} if others else {})}, hint=first.hint
        )
    return report


def store_new_feed(file: LoadedReplication, feed: FeedSection) -> Path:
    """Write the file of a new feed, without the state of an earlier feed with its name. Raises ConfigError."""
    if any(feed.name == other.name for other in file.replication.feed):
        raise ConfigError(
            "a changefeed with this id exists already", where={"id": feed.name, "replication": file.replication.name},
            hint="choose another --changefeed-id, or use `binlake changefeed update`",
        )  # fmt: skip
    windows = open_window_log(file.replication)
    if windows.exists():
        state = read_state(windows, feed.name)
        if state.state != "removed" and (state.number or read_progress(windows, feed.name).encoded is not None):
            record_removal(windows, feed.name, reason="its section was removed by hand")
        if read_state(windows, feed.name).number:
            record_resume(windows, feed.name, reason="created")
    path = build_feed_path(file.file, file.replication.name, feed.name)
    write_feed_file(path, feed)
    return path


def require_own_file(file: LoadedReplication, feed: str) -> Path:
    """The file of the feed. Raises ConfigError for a feed that is a section of the replication's file."""
    file.replication.require_feed(feed)
    path = build_feed_path(file.file, file.replication.name, feed)
    if not path.is_file():
        raise ConfigError(
            "this changefeed is a section [[feed]] of its replication", where={"id": feed, "file": file.file},
            hint="change or remove that section",
        )  # fmt: skip
    return path


def move_feed(file: LoadedReplication, feed: FeedSection, path: Path, ts: str) -> FeedSection:
    """Let the feed continue after `ts` (commit_ts), whatever it has sent, as if it had been created there.

    Raises ConfigError for a running feed or one that ends before `ts`, and what `forget_position` raises.
    """
    windows = open_window_log(file.replication)
    state = read_state(windows, feed.name)
    if state.works:
        raise ConfigError(
            "only a stopped changefeed can be moved", where={"id": feed.name, "state": state.state},
            hint=f"`binlake changefeed pause -c {feed.name}` first",
        )  # fmt: skip
    moved = build_section({"start-ts": ts}, "", dump_section_keys(feed))
    forget_position(feed, file.replication.name, state.life)
    write_feed_file(path, moved)
    record_removal(windows, feed.name, reason=f"moved to {ts}")
    return moved


def adopt_sink_position(file: LoadedReplication, feed: FeedSection) -> None:
    """Believe the position that the feed's sink reports.

    Raises ConfigError for a running feed, Transient, Permanent.
    """
    windows = open_window_log(file.replication)
    state = read_state(windows, feed.name)
    if state.works:
        raise ConfigError(
            "only the position of a stopped changefeed can be adopted",
            where={"id": feed.name, "state": state.state},
            hint=f"`binlake changefeed pause -c {feed.name}` first",
        )
    adopt_position(windows, feed, file.replication.name, state)


def remove_feed(file: LoadedReplication, feed: FeedSection, path: Path, *, force: bool) -> list[str]:
    """Remove the feed's state, messages in the lake, position at the sink, and file. Returns what stays.

    `force`: even if the sink does not answer. Raises LeaseHeld while encode runs for it, Transient, Permanent.
    """
    stays = [
        "its topics or files with all messages", "the registry's subjects", "its past events in the table `window`",
    ]  # fmt: skip
    windows, paths, life = open_window_log(file.replication), LakePaths.of(file.replication), 0
    if windows.exists():
        # Pause first, as no task may start to publish after its position is removed.
        life = record_pause(windows, feed.name, reason="it is being removed").life
    try:
        forget_position(feed, file.replication.name, life)
    except BinlakeError as error:
        if not force:
            raise Permanent(
                f"its position cannot be removed: {error.message}", where=error.where,
                hint="the changefeed is stopped; --force removes it and leaves the position, which no later feed reads",
            ) from None  # fmt: skip
        stays.append(f"its position at the sink ({error.message})")
    if windows.exists():
        with hold_lake_lock(paths, name_feed_lock(feed.name)):
            record_removal(windows, feed.name, reason="removed by command")
            delete_table(paths.locate_table(build_message_table(feed.name).name))
    path.unlink()
    return stays
