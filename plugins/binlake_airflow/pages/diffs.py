"""What the page of a difference shows: a table between two moments, key by key, page by page."""

from __future__ import annotations

from typing import Any

from binlake.audit.diff import KINDS, DiffLimits, RowDifference, TableDifference, diff_table
from binlake.health.values import build_ts_view
from binlake.lake.seek import TimeBudget
from binlake_airflow.pages.audits import PageLake, build_column_view, build_key_for_link, build_table_form, cut_text
from binlake_airflow.pages.masking import HIDDEN
from binlake_airflow.pages.request import BadPageRequest, PageRequest
from binlake_airflow.pages.workers import SEARCH_S

PAGE = 50
"""Keys on one page."""
_CHANGES, _ROWS = 20_000, 20_000
_COLUMNS = 60


def build_diff_view(lake: PageLake, query: PageRequest) -> dict[str, Any]:
    """The difference of a table `from` one moment `to` another (default: all that is merged), or of one kind of it."""
    view = build_table_form(lake, query)
    kind, first = query.read_text("kind"), query.parse_number("first")
    view |= {"from": query.read_text("from"), "to": query.read_text("to"), "kind": kind, "diff": None}
    if kind and kind not in KINDS:
        raise BadPageRequest(f"kind is one of: {', '.join(KINDS)}")
    if view["table"] is None or not view["from"]:
        return view
    found = find_difference(lake, query)
    db, table = query.parse_table() or ("", "")
    hidden = lake.masks.find_hidden(db, table, found.columns)
    without_keys = lake.masks.hides_key(lake.audit, db, table)
    rows = found.select(kind)
    shown = rows[first : first + PAGE]
    more = first + len(shown) < len(rows)
    view["diff"] = {
        "from": build_ts_view(found.lo), "to": build_ts_view(found.hi), "counts": found.count(),
        "columns": list(found.columns[:_COLUMNS]), "hidden": max(len(found.columns) - _COLUMNS, 0),
        "total": len(rows), "first": first, "next": first + len(shown) if more else None,
        "ddls": [build_ts_view(ts) for ts in found.ddls], "inexact": found.inexact,
        "masked": sorted(hidden),
        "rows": [_build_row_view(row, found.columns[:_COLUMNS], hidden, without_keys) for row in shown],
    }  # fmt: skip
    return view


def find_difference(lake: PageLake, query: PageRequest) -> TableDifference:
    """The difference that a request asks for. Raises BadPageRequest, BinlakeError."""
    lo, hi = query.parse_moment("from"), query.parse_moment("to")
    hi = lake.audit.read_merged_range()[1] if hi is None else hi
    if lo is None:
        raise BadPageRequest("give the first moment: `from`")
    if lo >= hi:
        raise BadPageRequest("the first moment must be before the second")
    limits = DiffLimits(_CHANGES, _ROWS, TimeBudget(SEARCH_S))
    return diff_table(lake.audit, query.parse_table() or ("", ""), lo, hi, limits)


def _build_row_view(
    row: RowDifference, columns: tuple[str, ...], hidden: frozenset[str], without_key: bool
) -> dict[str, Any]:
    return {
        "kind": row.kind, "op": {"added": "insert", "removed": "delete", "changed": "update"}[row.kind],
        "key": HIDDEN if without_key else cut_text(row.key),
        "key_asked": None if without_key else build_key_for_link(row.key), "copies": row.copies,
        "columns": [build_column_view(name, row.before, row.after, hidden) for name in columns],
    }  # fmt: skip
