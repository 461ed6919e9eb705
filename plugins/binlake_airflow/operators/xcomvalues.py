"""The part of an answer that a task returns: short, because XCom is for small values; and as Markdown for people."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

MOST_ROWS = 100
"""Most rows or changes of an answer that are returned; the command itself prints all."""
_SHOWN_ROWS = 20
_CELL = 120


def shorten_lists(answer: Any) -> Any:
    """The answer with its lists cut to MOST_ROWS; `left_off` says how many items of each list are missing."""
    if isinstance(answer, list):
        answer = {"changes": answer}
    if not isinstance(answer, dict):
        return answer
    long = {
        key: len(value) - MOST_ROWS
        for key, value in answer.items()
        if isinstance(value, list) and len(value) > MOST_ROWS
    }
    cut = {key: value[:MOST_ROWS] if key in long else value for key, value in answer.items()}
    return {**cut, "left_off": long} if long else cut


def summarize_values(answer: Any) -> str:
    """One line of the plain values of an answer."""
    if not isinstance(answer, Mapping):
        return json.dumps(answer, ensure_ascii=False)[:500]
    return ", ".join(f"{key} {value}" for key, value in answer.items() if isinstance(value, str | int | float))


def format_audit_markdown(params: Mapping[str, Any], answer: Mapping[str, Any] | None, *, found: bool) -> str:
    """The answer to an audit: a headline, and a table of rows or changes."""
    title = _format_title(params)
    if not found or not answer:
        return f"### {title}: nothing found\n"
    if "columns" in answer:
        rows, columns = answer["rows"], answer["columns"]
        count = len(rows) + answer.get("left_off", {}).get("rows", 0)
        head = f"### {title}: {count} rows as of {answer['as_of']} ({answer['time']})"
        head += f"\n\n**Inexact:** {answer['inexact']}" if answer.get("inexact") else ""
        return _format_markdown_page(head, columns, rows, answer)
    changes = answer.get("changes", [])
    columns = ("commit_ts", "commit_time", "op", "table", "before", "after")
    return _format_markdown_page(
        f"### {title}: {len(changes)} changes", columns, [_format_change_cells(change) for change in changes], answer
    )


def _format_change_cells(answer: Mapping[str, Any]) -> list[Any]:
    table = f"{answer.get('db')}.{answer.get('table')}"
    images = [_format_image_cell(answer.get(side)) for side in ("before", "after")]
    return [answer.get("commit_ts"), answer.get("commit_time"), answer.get("op"), table, *images]


def _format_title(params: Mapping[str, Any]) -> str:
    if params["what"] == "transaction":
        return f"transaction {params['commit_ts']}"
    return (
        f"row {params['table']} {json.dumps(params['key'])}" if params["what"] == "row" else f"table {params['table']}"
    )


def _format_markdown_page(
    head: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], answer: Mapping[str, Any]
) -> str:
    rows_shown = [f"| {' | '.join(map(_escape_cell, row))} |" for row in rows[:_SHOWN_ROWS]]
    more = sum(answer.get("left_off", {}).values()) + max(len(rows) - _SHOWN_ROWS, 0)
    tail = [f"\n{more} more: see the XCom `return_value`, or `binlake audit`"] if more else []
    return "\n".join(
        [head, "", f"| {' | '.join(map(_escape_cell, columns))} |", "|---" * len(columns) + "|", *rows_shown, *tail, ""]
    )


def _format_image_cell(image: Mapping[str, Any] | None) -> str:
    return "" if image is None else json.dumps(image, ensure_ascii=False)


def _escape_cell(value: object) -> str:
    text = "NULL" if value is None else str(value)
    cut = text if len(text) <= _CELL else text[: _CELL - 1] + "…"
    # Values of a row must not become markup or end the cell.
    return "".join({"|": "\\|", "\n": " ", "\r": " ", "<": "&lt;", "&": "&amp;"}.get(sign, sign) for sign in cut)
