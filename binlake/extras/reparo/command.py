"""`binlake reparo`: apply binlog files of a drainer, or of a feed `files`, to a database, or print them."""

from __future__ import annotations

import argparse
import json
import sys

from binlake.base.arguments import add_output
from binlake.base.filestore import Store, open_store
from binlake.binlogfile.reading import read_items
from binlake.config.storage import parse_store_address
from binlake.extras.reparo.printing import render_json_lines, render_text_lines
from binlake.extras.reparo.restore import Restored, restore
from binlake.extras.reparo.settings import ReparoSettings, read_settings

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


def open_data(settings: ReparoSettings) -> Store:
    """Open the folder or bucket of the files. Raises ConfigError."""
    return open_store(parse_store_address(settings.data_dir))


def _print(settings: ReparoSettings, store: Store, output: str) -> int:
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
