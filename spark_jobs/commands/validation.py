"""`binlake validation`: show the errors of continuous validation and mark them, as DM's `validation` commands do."""

from __future__ import annotations

import argparse
import json
import sys
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from binlake.common.commandline import add_output
from binlake.common.redaction import are_row_values_shown, redact_key
from binlake.common.terminal import print_table
from binlake.config import Replication, load_replication
from binlake.errors import ConfigError
from binlake.extras.validation.ledger import LOCK, Status, ValidationEntry, ValidationLedger
from binlake.extras.validation.run import MANUAL_STAGE, STAGE, list_errors
from binlake.lake.lock import hold_lake_lock
from binlake.lake.paths import LakePaths
from binlake.lake.windowlog import WindowEvent, WindowLog

_SHOWN: dict[str, tuple[Status, ...]] = {
    "new": ("new",), "ignored": ("ignored",), "resolved": ("resolved",), "pending": ("pending",),
    "all": ("new", "ignored", "resolved"),
}  # fmt: skip
_SAID = {"ignore": "ignored", "resolve": "resolved", "clear": "cleared"}
_SAMPLE = 60


class ValidationCommand:
    """Show, ignore, resolve and clear errors of continuous validation."""

    examples = (
        "binlake validation status --replication orders.toml",
        "binlake validation show --status new --replication orders.toml",
        "binlake validation ignore --error 7 --replication orders.toml",
        "binlake validation resolve --error 7 --replication orders.toml",
        "binlake validation clear --all --replication orders.toml",
    )
    help = "show what continuous validation found at the target; ignore, resolve or clear its errors"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """The actions."""
        actions = parser.add_subparsers(dest="action", required=True)
        status = actions.add_parser("status", help="how far validation is, and how many rows differ or wait")
        show = actions.add_parser("show", help="list the errors")
        show.add_argument("--status", choices=tuple(_SHOWN), default="new", help="only this status (default: new)")
        ignore = actions.add_parser("ignore", help="never count these errors again, even if the rows still differ")
        resolve = actions.add_parser("resolve", help="mark these errors as settled; they return if the rows differ")
        clear = actions.add_parser("clear", help="remove errors from the ledger")
        for each in (ignore, resolve, clear):
            which = each.add_mutually_exclusive_group(required=True)
            which.add_argument("--error", type=int, action="append", metavar="NUMBER", help="its number (repeatable)")
            which.add_argument(
                "--all", action="store_true", help="all new errors; with clear: all errors that are not new"
            )
        for each in (status, show, ignore, resolve, clear):
            each.add_argument("--replication", required=True, metavar="FILE", help="the replication's TOML")
            add_output(each)

    def run(self, args: argparse.Namespace) -> int:
        """Show the ledger, or change it. Raises ConfigError, LeaseHeld while a validation run is working."""
        replication = load_replication(args.replication)
        if args.action == "status":
            _show_status(replication, args.output)
        elif args.action == "show":
            _show_errors(ValidationLedger(LakePaths.of(replication)).list_entries(_SHOWN[args.status]), args.output)
        else:
            _show_errors(change_errors(replication, args.action, None if args.all else args.error), args.output)
        return 0


def change_errors(replication: Replication, action: str, numbers: Sequence[int] | None) -> list[ValidationEntry]:
    """Ignore, resolve or clear errors, by number or (None) all; returns the changed ones. Raises ConfigError."""
    paths = LakePaths.of(replication)
    if not WindowLog(paths).exists():
        raise ConfigError("the lake is empty", hint="run the replication's first window")
    with hold_lake_lock(paths, LOCK):
        ledger = ValidationLedger(paths)
        if action == "clear":
            changed = ledger.clear(numbers)
        else:
            changed = ledger.mark(numbers, "ignored" if action == "ignore" else "resolved")
        ledger.save()
        _record(WindowLog(paths), ledger, action, changed)
    return changed


def _record(windows: WindowLog, ledger: ValidationLedger, action: str, changed: Sequence[ValidationEntry]) -> None:
    """Record a manual change of errors as an event, so that no error leaves the ledger without a trace."""
    reached = windows.find_greatest_hi(STAGE) or 0
    detail = {
        "numbers": [entry.number for entry in changed], "pending": ledger.count("pending"),
        "errors": ledger.count("new"), "ignored": ledger.count("ignored"), "listed": list_errors(ledger),
    }  # fmt: skip
    run_id = f"validation-{uuid.uuid4().hex[:12]}"
    windows.record(
        WindowEvent(
            MANUAL_STAGE, reached, reached, _SAID[action], len(changed), run_id=run_id, sink="sql", detail=detail
        )
    )


def read_status(replication: Replication) -> dict[str, Any]:
    """The outcome of the last run, and the counts of the ledger."""
    paths = LakePaths.of(replication)
    ledger = ValidationLedger(paths)
    last = WindowLog(paths).read_last_events((STAGE,), 1)
    event = last[0] if last else None
    return {
        "mode": replication.validation.mode,
        "last": None if event is None else {
            "state": event["state"], "hi": str(event["hi"]), "at": _format_time(event["at_ms"]), "rows": event["rows"],
            **json.loads(event["detail"] or "{}"),
        },
        **{status: ledger.count(status) for status in ("pending", "new", "ignored", "resolved")},
    }  # fmt: skip


def _show_status(replication: Replication, output: str) -> None:
    status = read_status(replication)
    if output == "json":
        print(json.dumps(status))
        return
    last = status["last"]
    print(f"mode {status['mode']}")
    if last is None:
        print("no run yet")
    else:
        reason = f": {last['reason']}" if last.get("reason") else ""
        print(f"last run {last['at']}: {last['state']}, checkpoint {last['hi']}, {last['rows']:,} rows{reason}")
        for table, why in sorted(last.get("tables", {}).items()):
            print(f"{table}: not compared: {why}")
    print(", ".join(f"{status[name]:,} {name}" for name in ("pending", "new", "ignored", "resolved")))


def _show_errors(entries: Sequence[ValidationEntry], output: str) -> None:
    clear = are_row_values_shown() or sys.stdout.isatty()
    if output == "json":
        print(json.dumps([build_error_view(entry, clear=clear) for entry in entries]))
        return
    rows = []
    for entry in entries:
        view = build_error_view(entry, clear=clear)
        rows.append([str(view["number"]), view["status"], view["against"], view["table"], view["key"], view["kind"],
                     _format_differences(view), view["window"], str(view["times"]), view["last_seen"]])  # fmt: skip
    print_table(
        ("number", "status", "against", "table", "key", "kind", "columns", "window", "times", "last seen"), rows
    )


def build_error_view(entry: ValidationEntry, *, clear: bool) -> dict[str, Any]:
    """An entry for text and JSON output; `clear`: with the row's key and values, else only with a hash of the key."""
    view: dict[str, Any] = {
        "number": entry.number, "status": entry.status, "against": entry.against, "table": f"{entry.db}.{entry.table}",
        "key": entry.key if clear else redact_key(entry.key), "kind": entry.kind, "columns": list(entry.differing),
        "window": entry.window, "times": entry.times, "first_seen": _format_time(entry.first_ms),
        "last_seen": _format_time(entry.last_ms),
    }  # fmt: skip
    if clear:
        view |= {side: json.loads(text) if text else None
                 for side, text in (("expected", entry.expected), ("found", entry.found))}  # fmt: skip
    return view


def _format_differences(view: dict[str, Any]) -> str:
    expected, found = view.get("expected"), view.get("found")
    if not (expected and found):
        return ", ".join(view["columns"])
    return ", ".join(
        f"{name}: {_shorten(found[name])} instead of {_shorten(expected[name])}" for name in view["columns"]
    )


def _shorten(value: str | None) -> str:
    return "NULL" if value is None else repr(value if len(value) <= _SAMPLE else f"{value[: _SAMPLE - 3]}...")


def _format_time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds")
