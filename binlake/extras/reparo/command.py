"""`binlake reparo`: apply binlog files of a drainer, or of a feed `files`, to a database, or print them.

A printed row has its columns' types, and for an update old -> new.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from binlake import tso
from binlake.binlogfile.framing import build_damage_error
from binlake.binlogfile.reading import (
    BinlogColumn,
    BinlogDdl,
    BinlogRow,
    BinlogTransaction,
    Item,
    decode_datum,
    read_items,
)
from binlake.common.commandline import add_output
from binlake.common.filestore import StoredFiles, open_store
from binlake.config.sinkuri import parse_store_address
from binlake.extras.reparo.restore import Restored, restore
from binlake.extras.reparo.settings import ReparoSettings, read_settings

Keeps = Callable[[str, str], bool]

_BINARY = ("binary", "varbinary", "blob", "tinyblob", "mediumblob", "longblob", "bit")


def render_text_lines(items: Iterable[Item], keeps: Keeps) -> Iterator[str]:
    """The lines of `items` for a terminal. Raises DamagedFile."""
    for item in items:
        head = f"-- {item.commit_ts} ({tso.to_datetime(item.commit_ts):%Y-%m-%d %H:%M:%S.%f} UTC)"
        if isinstance(item, BinlogDdl):
            yield f"{head} DDL"
            yield f"use {item.db}; {item.sql};" if item.db else f"{item.sql};"
            continue
        events = [event for event in item.events if keeps(event.db, event.table)]
        if events:
            yield f"{head} {len(events)} rows"
        for event in events:
            yield f"{event.kind} {event.db}.{event.table}"
            for column in event.columns:
                old, new = _format_values(column, item)
                yield f"  {column.name} ({column.mysql_type}): {_quote_text(old)}" + (
                    f" -> {_quote_text(new)}" if column.changed is not None else ""
                )


def render_json_lines(items: Iterable[Item], keeps: Keeps) -> Iterator[str]:
    """One JSON object per row change or DDL. Raises DamagedFile."""
    for item in items:
        where = {"commit_ts": str(item.commit_ts), "file": item.place.file, "offset": item.place.offset}
        if isinstance(item, BinlogDdl):
            yield json.dumps({**where, "kind": "ddl", "db": item.db, "sql": item.sql}, ensure_ascii=False)
            continue
        for event in item.events:
            if keeps(event.db, event.table):
                yield json.dumps({**where, **_build_row(event, item)}, ensure_ascii=False)


def _build_row(event: BinlogRow, item: BinlogTransaction) -> dict[str, Any]:
    values = {column.name: _format_values(column, item) for column in event.columns}
    sides: dict[str, Any] = {}
    if event.kind != "insert":
        sides["before"] = {name: old for name, (old, _) in values.items()}
    if event.kind != "delete":
        at = 1 if event.kind == "update" else 0
        sides["after"] = {name: both[at] for name, both in values.items()}
    types = {column.name: column.mysql_type for column in event.columns}
    return {"kind": event.kind, "db": event.db, "table": event.table, **sides, "types": types}


def _format_values(column: BinlogColumn, item: BinlogTransaction) -> tuple[str | None, str | None]:
    """(value, changed value) as text; bytes of binary types as upper-case hex."""
    try:
        new = None if column.changed is None else _format_datum(column, column.changed)
        return _format_datum(column, column.value), new
    except ValueError as error:
        raise build_damage_error(f"column {column.name}: {error}", item.place.file, item.place.offset) from error


def _format_datum(column: BinlogColumn, datum: bytes) -> str | None:
    value = decode_datum(datum)
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, bytes):
        return str(value)
    if column.mysql_type not in _BINARY:
        try:
            return value.decode()
        except UnicodeDecodeError:
            pass
    return value.hex().upper()


def _quote_text(text: str | None) -> str:
    return "NULL" if text is None else json.dumps(text, ensure_ascii=False)


_FLAGS = {
    "data-dir": "folder of the binlog files, or the URI of an object store",
    "base": "folder of a dump of dumpling or mydumper, loaded first; the files then continue after its commit_ts",
    "base-ts": "the dump's commit_ts, if its metadata does not have it",
    "start-datetime": "begin with this local time, as 2026-11-23 15:00:00",
    "stop-datetime": "end with this local time",
    "start-tso": "begin with this commit_ts, inclusive",
    "stop-tso": "end with this commit_ts, inclusive",
    "txn-batch": "rows per statement",
    "worker-count": "connections in mode parallel",
    "dest-type": "print (default), mysql, mariadb or tidb",
    "log-file": "accepted for the original; not used",
    "name": "name of the progress at the target (default: reparo)",
    "time-zone": "zone of TIMESTAMPs in the files (default: as their index says; without an index UTC)",
    "mode": "atomic (default), parallel or auto",
    "window-rows": "rows that are applied together",
}


class ReparoCommand:
    """Apply binlog files, or print them."""

    examples = ("binlake reparo -config reparo.toml",)
    help = (
        "apply binlog files (of TiDB's drainer, or of a feed with the protocol pb) to MySQL, MariaDB or TiDB, exactly"
        " once, or print them (dest-type print)"
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the original's flags, which override its toml."""
        parser.add_argument(
            "-config", "--config", default="", metavar="FILE", help="the original's toml: [dest-db], ..."
        )
        for flag, what in _FLAGS.items():
            parser.add_argument(f"-{flag}", f"--{flag}", default=None, help=what)
        parser.add_argument("-L", "--log-level", default=None, help="accepted for the original; not used")
        parser.add_argument(
            "-safe-mode", "--safe-mode", action="store_true", default=None, help="use REPLACE throughout"
        )
        parser.add_argument("-torn-end", "--torn-end", action="store_true", default=None,
                            help="the last file may end inside a record")  # fmt: skip
        add_output(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Apply or print the range. Raises BinlakeError."""
        flags = {
            flag: getattr(args, flag.replace("-", "_")) for flag in (*_FLAGS, "log-level", "safe-mode", "torn-end")
        }
        settings = read_settings(args.config, flags)
        store = open_data(settings)
        if settings.dest_type == "print":
            return _print(settings, store, args.output)
        restored = restore(settings, store, say=_say)
        print(json.dumps(_build_report(restored)) if args.output == "json" else _format_text(restored))
        return 0


def open_data(settings: ReparoSettings) -> StoredFiles:
    """Open the folder or bucket of the files. Raises ConfigError."""
    return open_store(parse_store_address(settings.data_dir))


def _print(settings: ReparoSettings, store: StoredFiles, output: str) -> int:
    items = read_items(store, settings.start, settings.stop or None, torn_end=settings.torn_end)
    show = render_json_lines if output == "json" else render_text_lines
    for line in show(items, settings.build_table_filter().keeps):
        print(line)
    return 0


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _build_report(restored: Restored) -> dict[str, object]:
    return {
        "state": restored.state,
        "begin": str(restored.begin),
        "end": str(restored.end),
        "windows": restored.windows,
        "rows": restored.rows,
        "ddl": restored.ddls,
        "skipped": list(restored.skipped),
    }


def _format_text(restored: Restored) -> str:
    if restored.state == "already":
        return f"nothing to do: everything up to {restored.end} is applied"
    lines = [f"{restored.rows:,} rows and {restored.ddls:,} DDL; everything up to {restored.end} is applied"]
    return "\n".join([*lines, *(f"no statement for the DDL at {text}" for text in restored.skipped)])
