"""Is the content of a lake table that of every window that was written to it?

A power cut can remove the newest file of a table's Delta log, or leave it empty: the table then looks as it did before,
and what is derived from it would be wrong. Each stage therefore records, in the event that ends a window, the version
that its tables had then. A table with a lower version has lost that window, and nothing is read from it or written to
it until the window is there again. A reader asks before it answers, a writer before it writes (else its commit would
take the place of the lost one).

A RESTORE by hand takes windows away too, but as a commit of its own: the version rises. So the commits after the
recorded version are looked at as well.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType

from deltalake.exceptions import TableNotFoundError

from binlake.errors import LostRange
from binlake.lake.controltables import SCHEMA_CHANGE
from binlake.lake.opentable import KnownTable, is_last_version, open_known
from binlake.lake.paths import LakePaths
from binlake.lake.tables import BINLOG, LakeTable
from binlake.lake.windowlog import WindowLog
from binlake.window.events import EventRow
from binlake.window.manifest import format_window_name

LANDED_TABLES = (BINLOG, SCHEMA_CHANGE)
_ALWAYS_READ = (SCHEMA_CHANGE.name,)
"""Tables that each answer reads, so that a glance at them would cost more than it saves."""
VERSIONS = "versions"
"""The key of an event's detail: by table, its Delta version after the window."""
_LAST_EVENTS = 64
"""Newest events that are asked. Each writer asks before it writes, so older windows were there when newer ones came."""
_EVENTS_STORED = 2
"""The same for each stage in an object store, which loses no file in a power cut: the newest says enough."""
_LAST_COMMITS = 32
_AGAIN = {
    "merge": "derive it again: `binlake stage merge --replication FILE --lo {lo} --hi {hi}`",
    "land": "start a new lake: a window lands only once",
    "mirror": "start a new lake: a window is mirrored only once",
}


Opened = Mapping[str, KnownTable]
"""Tables of the lake by name, at their newest versions when they were opened."""


def read_versions(
    paths: LakePaths, tables: Iterable[LakeTable], opened: Opened = MappingProxyType({})
) -> dict[str, int]:
    """The present version of each table, -1 if it does not exist: for the detail of a window's last event.

    `opened`: those that nobody has written to since, as the caller knows.
    """
    present = {table.name: opened.get(table.name) or _find_table(paths, table.name) for table in tables}
    return {name: -1 if table is None else int(table.version()) for name, table in present.items()}


def require_all_windows(
    paths: LakePaths,
    windows: WindowLog,
    stages: Collection[str],
    *,
    but: tuple[str, int, int] | None = None,
    glances: bool = False,
) -> Opened:
    """Require the newest windows of `stages`, except `but` (stage, lo, hi), which is written anew.

    Returns the tables that it opened. `glances`: those of a store need not be opened, as for an answer from a few of
    them. Raises LostRange."""
    count = _LAST_EVENTS if paths.local is not None else _EVENTS_STORED * len(stages)
    events = windows.read_last_events(tuple(stages), count, ("done",))
    return require_windows(paths, events, but=but, glances=glances)


def require_windows(
    paths: LakePaths, events: Iterable[EventRow], *, but: tuple[str, int, int] | None = None, glances: bool = False
) -> Opened:
    """Require the windows of `events` in the tables whose versions they record; returns those that it opened.

    `glances` as in `require_all_windows`. Raises LostRange."""
    newest: dict[tuple[str, int, int], EventRow] = {}
    for event in sorted(events, key=lambda event: event["at_ms"]):
        newest[event["stage"], event["lo"], event["hi"]] = event
    written = [
        (place, table, version)
        for place, event in newest.items()
        if place != but
        for table, version in json.loads(event["detail"] or "{}").get(VERSIONS, {}).items()
    ]
    recorded: dict[str, int] = {}
    for _, table, version in written:
        recorded[table] = max(version, recorded.get(table, version))
    opened: dict[str, KnownTable] = {}
    found: dict[str, int] = {}
    for table, version in recorded.items():
        if glances and table not in _ALWAYS_READ and is_last_version(paths.locate_table(table), version):
            found[table] = version
            continue
        present = _find_table(paths, table)
        found[table] = -1 if present is None else int(present.version())
        opened |= {} if present is None else {table: present}
    for (stage, lo, hi), table, version in written:
        if found[table] < version:
            again = _AGAIN[stage].format(lo=lo, hi=hi)
            raise LostRange(
                f"the lake's table `{table}` has lost the commit of a window: it is at version {found[table]}",
                where={"window": format_window_name(lo, hi), "written_as": version, "lake": paths.root},
                hint=f"restore the files of `{table}/_delta_log` from a copy, or {again}",
            )
    for table, version in recorded.items():
        if found[table] > version:
            require_not_restored(opened[table], table, version)
    return opened


def require_not_restored(table: KnownTable, name: str, recorded: int) -> None:
    """Require that no RESTORE by hand took away what `table` had at Delta's version `recorded`. Raises LostRange.

    One that brings it back is fine, so the way on is a RESTORE to that version.
    """
    # Binlake restores no table. After the newest window there are few commits; a sink that is far behind looks only at
    # the last ones, as every stage that writes has looked at those before them.
    later = table.history(min(table.version() - recorded, _LAST_COMMITS))
    whole: dict[int, bool] = {}
    is_whole = True
    for commit in sorted(later, key=lambda commit: int(commit["version"])):
        if commit.get("operation") == "RESTORE":
            to = (commit.get("operationParameters") or {}).get("version")
            # Restored to a time, it is not known to which version: it must be done again by version.
            is_whole = to is not None and int(to) >= recorded and whole.get(int(to), True)
        whole[int(commit["version"])] = is_whole
    if not is_whole:
        raise LostRange(
            f"the lake's table `{name}` was restored to an older version by another hand",
            where={"version": table.version(), "written_as": recorded, "table": table.table_uri},
            hint=f"RESTORE it to version {recorded} (Spark SQL, or delta-rs: `DeltaTable(…).restore({recorded})`)",
        )


def _find_table(paths: LakePaths, table: str) -> KnownTable | None:
    try:
        return open_known(paths.locate_table(table))
    except TableNotFoundError:
        return None
