"""`binlake feeder`: runs the feeder of MySQL and MariaDB sources, checks them beforehand, or shows its progress."""

from __future__ import annotations

import argparse
import json
import signal
import ssl
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx

from binlake.common.commandline import add_output
from binlake.common.terminal import format_pace
from binlake.errors import ConfigError
from binlake.pump_service.feeder.checks.report import has_failures, print_report, report_values, run_checks
from binlake.pump_service.feeder.journal import FeederJournal
from binlake.pump_service.feeder.service import STATUS_PATH, Feeder
from binlake.pump_service.feeder.settings import FeederFile, SourceFile, read_settings
from binlake.pump_service.feeder.snapshot.addedtables import AddedTables
from binlake.pump_service.feeder.snapshot.control import add_request, set_paused
from binlake.pump_service.feeder.snapshot.loadstate import read_load_record
from binlake.pump_service.feeder.sources import describe_removed
from binlake.pump_service.feeder.status import describe_position
from binlake.rpc import Tls

_ASK_S = 5.0
_SHOWN = (
    "server", "file", "offset", "gtids", "last_id", "last_commit_ts", "lag_s", "transactions", "ddls", "left_out",
    "heard_s", "trouble",
)  # fmt: skip


class FeederCommand:
    """The command; needs PD, at least one pump, and the servers named in feeder.toml."""

    name = "feeder"
    examples = (
        "binlake feeder run --config /etc/binlake/feeder.toml",
        "binlake feeder status --config /etc/binlake/feeder.toml",
        "binlake feeder check --config /etc/binlake/feeder.toml --output json",
        "binlake feeder pause-load --config /etc/binlake/feeder.toml --source shard-1",
        "binlake feeder resume-load --config /etc/binlake/feeder.toml --source shard-1",
        "binlake feeder load-table --config /etc/binlake/feeder.toml --source shard-1 --table shop.orders",
    )
    help = "read MySQL and MariaDB servers and send their transactions to the pumps"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """The actions `run`, `check`, `status`, `pause-load`, `resume-load` and `load-table`."""
        actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
        run = actions.add_parser("run", help="run until a signal ends it")
        status = actions.add_parser("status", help="show each source: its server, file, position, GTIDs and lag")
        check = actions.add_parser(
            "check", help="look at each source and the tracker: ok, warn or fail, and the remedy"
        )
        pause = actions.add_parser("pause-load", help="a full load reads nothing more until it is resumed")
        resume = actions.add_parser("resume-load", help="let a full load that was paused continue")
        load = actions.add_parser(
            "load-table", help="drop tables downstream, and load them again while the log is read"
        )
        load.add_argument(
            "--table",
            required=True,
            action="append",
            metavar="DB.T",
            help="a table of the source; repeatable",
        )
        for subparser in (pause, resume, load):
            subparser.add_argument("--source", required=True, metavar="NAME", help="the source whose load it is")
        for subparser in (status, check):
            add_output(subparser)
        for subparser in (run, status, check, pause, resume, load):
            subparser.add_argument(
                "--config", type=Path, default=Path("feeder.toml"), metavar="FILE", help="feeder.toml"
            )

    def run(self, args: argparse.Namespace) -> int:
        """0 after a clean stop; `check` returns 1 when a check fails, `status` when a source is not read.

        Raises BinlakeError.
        """
        settings = read_settings(args.config)
        if args.action == "check":
            return _check(settings, args.output)
        if args.action == "status":
            return show_status(settings, args.output)
        if args.action in ("pause-load", "resume-load"):
            return _set_paused(settings, args.source, paused=args.action == "pause-load")
        if args.action == "load-table":
            return _ask_to_load(settings, args.source, args.table)
        feeder = Feeder(settings)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: feeder.stop())
        feeder.run(lambda url: print(f"feeder {settings.name}: status port {url}", flush=True))
        return 0


def _check(settings: FeederFile, output: str) -> int:
    report = run_checks(settings)
    if output == "json":
        print(json.dumps(report_values(report)))
    else:
        print_report(report)
    return 1 if has_failures(report) else 0


def _require_source(settings: FeederFile, name: str) -> SourceFile:
    sources = {source.name: source for source in settings.source}
    if name not in sources:
        raise ConfigError("feeder.toml has no such source", where={"source": name}, hint=f"one of {', '.join(sources)}")
    return sources[name]


def _ask_to_load(settings: FeederFile, source: str, tables: list[str]) -> int:
    known = _require_source(settings, source)
    names = [(db, table) for db, _, table in (text.partition(".") for text in tables)]
    for text, (db, table) in zip(tables, names, strict=True):
        if not db or not table:
            raise ConfigError("a table is named by its database and its name", where={"table": text}, hint="DB.TABLE")
        if known.ignores(db, table):
            raise ConfigError(
                "the source leaves this table out", where={"table": text},
                hint="remove it from ignore-tables in feeder.toml and start the feeder again: then it is loaded",
            )  # fmt: skip
    add_request(settings.data_dir, source, names)
    print(f"{source}: the feeder will load {', '.join(tables)}; follow it with `binlake feeder status`")
    return 0


def _set_paused(settings: FeederFile, source: str, *, paused: bool) -> int:
    _require_source(settings, source)
    is_new = set_paused(settings.data_dir, source, paused=paused)
    state = "paused" if paused else "not paused"
    print(f"{source}: its full load is {state}" + ("" if is_new else ", as before"))
    return 0


def show_status(settings: FeederFile, output: str) -> int:
    """Print the progress of each source: from the running feeder, else from its folder. Raises BinlakeError.

    Returns 1 if a source is not read, or makes no progress.
    """
    status = _ask_feeder(settings) or _read_journal(settings)
    found = 0 if all(_makes_progress(source) for source in status["sources"]) else 1
    if output == "json":
        print(json.dumps(status))
        return found
    for source in [*status["sources"], *status.get("removed", ())]:
        print(f"{source['source']}: {source['state']}")
        for name in _SHOWN:
            if source.get(name) not in ("", None):
                print(f"  {name.replace('_', '-')}: {source[name]}")
        if load := source.get("load"):
            rows, tables = f"{load.get('rows', 0):,} rows", f"{load.get('tables_done', 0)} of {load.get('tables', 0)}"
            pace = format_pace(load.get("rows_per_second") or 0.0, load.get("seconds_left"))
            print(f"  load: {load['state']}, {rows}, {tables} tables{pace}")
    for table, texts in status.get("replaced_texts", {}).items():
        print(f"replaced texts of {table} (invalid-text) since the start: {texts:,}")
    return found


def _makes_progress(source: Mapping[str, Any]) -> bool:
    """Whether its log or its tables are read now, and nothing is in the way."""
    reads = source["state"] == "loading" or bool(source.get("heard"))
    return reads and not source.get("trouble")


def _ask_feeder(settings: FeederFile) -> dict[str, Any] | None:
    """The status of the running feeder; None if none answers."""
    tls = settings.status_security.to_tls()
    try:
        url = f"http{'s' if tls else ''}://{settings.status_addr}{STATUS_PATH}"
        answer = httpx.get(url, timeout=_ASK_S, trust_env=False, verify=_build_context(tls) if tls else False)
        answer.raise_for_status()
        status: dict[str, Any] = answer.json()
    except (httpx.HTTPError, ValueError):
        return None
    return status


def _build_context(own: Tls) -> ssl.SSLContext:
    """Shows the feeder's own certificate; does not check the answering one, which is this machine's."""
    context = own.build_http_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _read_journal(settings: FeederFile) -> dict[str, Any]:
    """The status from the journal while no feeder runs. Raises Permanent if one runs but its status port is silent."""
    if not settings.data_dir.exists():
        raise ConfigError(
            "there is no feeder", where={"data-dir": settings.data_dir}, hint="start it: binlake feeder run"
        )
    with closing(FeederJournal(settings.data_dir)) as journal:
        positions = journal.read_positions()
        loads = {
            source.name: AddedTables.read(journal, source.name).to_json() or read_load_record(journal, source.name)
            for source in settings.source
        }
        removed = describe_removed(journal, loads)
    return {
        "name": settings.name,
        "sources": [
            {"source": source.name, "state": "not running", **describe_position(positions.get(source.name))}
            | ({"load": loads[source.name]} if loads[source.name] else {})
            for source in settings.source
        ],
        "removed": removed,
    }
