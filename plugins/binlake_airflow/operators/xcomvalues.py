"""What a task keeps of an answer: XCom is for small things, and people read Markdown."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

MOST_ROWS = 100
"""Rows or changes of an answer that are kept; the command itself gives all of them."""
_SHOWN_ROWS = 20
_CELL = 120


def shortened(told: Any) -> Any:
    """The answer with its lists cut to MOST_ROWS; `left_off` says how many are missing of which."""
    if isinstance(told, list):
        told = {"changes": told}
    if not isinstance(told, dict):
        return told
    long = {
        key: len(value) - MOST_ROWS for key, value in told.items() if isinstance(value, list) and len(value) > MOST_ROWS
    }
    cut = {key: value[:MOST_ROWS] if key in long else value for key, value in told.items()}
    return {**cut, "left_off": long} if long else cut


def summary(told: Any) -> str:
    """One line of the plain values of an answer."""
    if not isinstance(told, Mapping):
        return json.dumps(told, ensure_ascii=False)[:500]
    return ", ".join(f"{key} {value}" for key, value in told.items() if isinstance(value, str | int | float))


def audit_markdown(params: Mapping[str, Any], told: Mapping[str, Any] | None, *, found: bool) -> str:
    """The answer to an audit: a headline, and a table of rows or changes."""
    title = _title(params)
    if not found or not told:
        return f"### {title}: nothing found\n"
    if "columns" in told:
        rows, columns = told["rows"], told["columns"]
        count = len(rows) + told.get("left_off", {}).get("rows", 0)
        head = f"### {title}: {count} rows as of {told['as_of']} ({told['time']})"
        head += f"\n\n**Inexact:** {told['inexact']}" if told.get("inexact") else ""
        return _page(head, columns, rows, told)
    changes = told.get("changes", [])
    columns = ("commit_ts", "commit_time", "op", "table", "before", "after")
    return _page(f"### {title}: {len(changes)} changes", columns, [_change(one) for one in changes], told)


def _change(told: Mapping[str, Any]) -> list[Any]:
    table = f"{told.get('db')}.{told.get('table')}"
    images = [_image(told.get(side)) for side in ("before", "after")]
    return [told.get("commit_ts"), told.get("commit_time"), told.get("op"), table, *images]


def _title(params: Mapping[str, Any]) -> str:
    if params["what"] == "transaction":
        return f"transaction {params['commit_ts']}"
    return (
        f"row {params['table']} {json.dumps(params['key'])}" if params["what"] == "row" else f"table {params['table']}"
    )


def _page(head: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], told: Mapping[str, Any]) -> str:
    shown = [f"| {' | '.join(map(_cell, row))} |" for row in rows[:_SHOWN_ROWS]]
    more = sum(told.get("left_off", {}).values()) + max(len(rows) - _SHOWN_ROWS, 0)
    tail = [f"\n{more} more: see the XCom `return_value`, or `binlake audit`"] if more else []
    return "\n".join(
        [head, "", f"| {' | '.join(map(_cell, columns))} |", "|---" * len(columns) + "|", *shown, *tail, ""]
    )


def _image(image: Mapping[str, Any] | None) -> str:
    return "" if image is None else json.dumps(image, ensure_ascii=False)


def _cell(value: object) -> str:
    text = "NULL" if value is None else str(value)
    cut = text if len(text) <= _CELL else text[: _CELL - 1] + "…"
    # What is in a row must not become markup or end the cell.
    return "".join({"|": "\\|", "\n": " ", "\r": " ", "<": "&lt;", "&": "&amp;"}.get(sign, sign) for sign in cut)
