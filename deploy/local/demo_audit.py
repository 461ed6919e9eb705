"""The demo's audit queries: a row's history with `binlake audit`, and tables as of a commit_ts inside a window."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from binlake.audit.audit import Audit
from binlake.compare import build_canonical_converter, decode_captured_value
from binlake.config import Replication
from binlake.errors import IncompleteWindow
from binlake.lake.paths import LakePaths
from binlake.lake.windowlog import WindowLog
from binlake.testkit.captures.capture import StateAt
from deploy.local.demo_report import Report, format_moment
from deploy.local.process import ProcessError

_SHOWN = 5


def show_audit(replication: Replication, file: Path, states: Sequence[StateAt], report: Report) -> bool:
    """Whether every table as of each of `states`, which lie inside windows, equals what the source showed then."""
    paths = LakePaths.of(replication)
    equal = [_as_of(paths, state, report) for state in states]
    table = _select_tables(states[0])[0]
    _show_history(table, file, report)
    _show_rows(table, file, states[0].commit_ts, report)
    return all(equal)


def _as_of(paths: LakePaths, state: StateAt, report: Report) -> bool:
    lo, hi = _find_window_around(WindowLog(paths), state.commit_ts)
    audit, tables = Audit(paths), _select_tables(state)
    wrong = [table["table"] for table in tables if not _is_equal(audit, table, state.commit_ts)]
    rows = sum(len(table["rows"]) for table in tables)
    verdict = f"differs: {', '.join(wrong)}" if wrong else "equal"
    report.say(
        f"lake as of {format_moment(state.commit_ts)}, inside the window ({lo}, {hi}] ({state.step}): "
        f"{len(tables)} tables, {rows} rows: {verdict}"
    )
    return not wrong


def _select_tables(state: StateAt) -> list[dict[str, Any]]:
    return [table for table in state.contents if table.get("kind") == "BASE TABLE"]


def _find_window_around(windows: WindowLog, ts: int) -> tuple[int, int]:
    window = next(((lo, hi) for lo, hi in windows.list_landed((ts - 1, ts)) if lo < ts < hi), None)
    if window is None:
        raise IncompleteWindow("no landed window has this commit_ts strictly inside", where={"commit_ts": ts})
    return window


def _show_history(table: dict[str, Any], file: Path, report: Report) -> None:
    key = [str(table["rows"][0][table["columns"].index(name)]) for name in table["order_by"]]
    command = ["row", table["table"], *key]
    history = _ask(file, command)
    lines = [
        (
            version["commit_ts"],
            version["commit_time"],
            version["op"],
            _format_image(version["before"], version["after"]),
        )
        for version in history
    ]
    title = f"binlake audit {' '.join(command)}: {len(history)} changes, the last {min(_SHOWN, len(lines))}:"
    report.print_table(title, ("commit_ts", "commit time", "op", "row"), lines[-_SHOWN:])


def _show_rows(table: dict[str, Any], file: Path, ts: int, report: Report) -> None:
    command = ["table", table["table"], "--as-of", str(ts)]
    answer = _ask(file, command)
    title = f"binlake audit {' '.join(command)}: {len(answer['rows'])} rows, the first {_SHOWN}:"
    report.print_table(title, answer["columns"], answer["rows"][:_SHOWN])


def _is_equal(audit: Audit, table: dict[str, Any], ts: int) -> bool:
    columns, rules = table["columns"], [build_canonical_converter(kind) for kind in table["types"]]
    lake = audit.read_table_as_of(table["schema"], table["name"], ts)
    shown = Counter(
        tuple(rule(row[name]) for rule, name in zip(rules, columns, strict=True)) for row in lake.rows
    )  # fmt: skip
    recorded = Counter(
        tuple(rule(decode_captured_value(value)) for rule, value in zip(rules, row, strict=True))
        for row in table["rows"]
    )
    return list(lake.columns) == list(columns) and shown == recorded


def _format_image(before: dict[str, str] | None, after: dict[str, str] | None) -> str:
    if before is None or after is None:
        return ", ".join(f"{name}={value}" for name, value in (after or before or {}).items())
    changed = {name for name in after if before.get(name) != after[name]}
    return ", ".join(f"{name}: {before.get(name)} -> {after[name]}" for name in after if name in changed)


def _ask(file: Path, words: list[str]) -> Any:
    command = [sys.executable, "-m", "binlake.cli", "audit", *words, "--replication", str(file), "--output", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ProcessError(f"binlake audit {' '.join(words)} failed: {done.stderr.strip()[-1500:]}")
    return json.loads(done.stdout)
