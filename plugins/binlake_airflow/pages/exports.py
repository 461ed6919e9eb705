"""Files for programs and spreadsheets: a row's history, a table's rows, a difference; every value whole.

A file is complete, or there is none: if it would be larger than a limit, the error names the command without one.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from binlake import tso
from binlake.audit.preview import preview_rows
from binlake.errors import LostRange
from binlake.lake.mutations import Row, RowVersion
from binlake.lake.seek import TimeBudget
from binlake_airflow.pages.audits import PageLake, has_changed, require_open_key
from binlake_airflow.pages.diffs import find_difference
from binlake_airflow.pages.masking import HIDDEN, mask_row
from binlake_airflow.pages.request import BadPageRequest, PageRequest

MOST = 10_000
"""Rows of a file."""
SECONDS = 8.0
"""Seconds for which an export reads the lake."""
NULL = "\\N"
"""NULL in a CSV file, as MySQL writes it; the empty text is empty."""
FORMATS: Mapping[str, str] = {"csv": "text/csv; charset=utf-8", "json": "application/json"}


@dataclass(frozen=True)
class Export:
    """Rows to write: each a mapping of `columns` to texts."""

    columns: Sequence[str]
    rows: Sequence[Mapping[str, str | None]]

    def write(self, form: str) -> str:
        """The file's text: `csv` or `json`."""
        if form == "json":
            return json.dumps([dict(row) for row in self.rows], ensure_ascii=False, indent=0)
        out = io.StringIO(newline="")
        writer = csv.writer(out, lineterminator="\r\n")
        writer.writerow(self.columns)
        writer.writerows([_format(row.get(name)) for name in self.columns] for row in self.rows)
        return out.getvalue()


def build_export(lake: PageLake, query: PageRequest) -> dict[str, Any]:
    """The file that the request names: `text`, `media_type`, `name`. Raises BadPageRequest, BinlakeError."""
    what, _, form = query.path["file"].rpartition(".")
    make = _MAKERS.get(what)
    if make is None or form not in FORMATS:
        raise BadPageRequest(f"files are {', '.join(_MAKERS)}, each as .{' or .'.join(FORMATS)}")
    table = query.parse_table()
    if table is None:
        raise BadPageRequest("name the table")
    name = "".join(sign if sign.isascii() and (sign.isalnum() or sign in "._-") else "_" for sign in ".".join(table))
    return {
        "text": make(lake, query, table).write(form), "media_type": FORMATS[form], "name": f"{what}-{name}.{form}",
    }  # fmt: skip


def _export_row(lake: PageLake, query: PageRequest, table: tuple[str, str]) -> Export:
    key = query.parse_key()
    if key is None:
        raise BadPageRequest("give the row's key")
    require_open_key(lake, *table)
    after, column = query.parse_moment("after"), query.read_text("column")
    found = lake.audit.find_newest_of_row(
        *table, key, upto=query.parse_moment("upto"), count=MOST, budget=TimeBudget(SECONDS), most=MOST,
        after=-1 if after is None else after,
    )  # fmt: skip
    if not found.whole:
        raise _build_error("binlake audit row", "the history is longer, or took longer to read, than a page may export")
    changes = [change for change in found.changes if not column or has_changed(change, column)]
    names = dict.fromkeys(name for change in changes for name in (change.after or change.before or {}))
    head = ("commit_ts", "commit_time", "start_ts", "op")
    columns = [*head, *(f"{side}.{name}" for name in names for side in ("before", "after"))]
    hidden = lake.masks.find_hidden(*table, names)
    return Export(columns, [_build_change(change, hidden) for change in changes])


def _build_change(change: RowVersion, hidden: frozenset[str]) -> dict[str, str | None]:
    return {
        "commit_ts": str(change.commit_ts), "commit_time": _format_time(change.commit_ts),
        "start_ts": str(change.start_ts), "op": change.op, **dict(_name_sides(change.before, change.after, hidden)),
    }  # fmt: skip


def _export_table(lake: PageLake, query: PageRequest, table: tuple[str, str]) -> Export:
    at = query.parse_moment("at")
    last = lake.audit.read_merged_range()[1]
    found = preview_rows(lake.audit, lake.log, table, last if at is None else at, MOST, TimeBudget(SECONDS))
    if found.more:
        raise _build_error("binlake audit table", f"the table has more than {MOST:,} rows, or long ones")
    hidden = lake.masks.find_hidden(*table, found.columns)
    return Export(found.columns, [mask_row(row, hidden) or {} for row in found.rows])


def _export_diff(lake: PageLake, query: PageRequest, table: tuple[str, str]) -> Export:
    found, kind = find_difference(lake, query), query.read_text("kind")
    hidden, without_keys = lake.masks.find_hidden(*table, found.columns), lake.masks.hides_key(lake.audit, *table)
    columns = ["key", "difference", *(f"{side}.{name}" for name in found.columns for side in ("before", "after"))]
    rows = [
        {"key": HIDDEN if without_keys else row.key, "difference": row.kind,
         **dict(_name_sides(row.before, row.after, hidden))}
        for row in found.select(kind)
        for _ in range(row.copies)
    ]  # fmt: skip
    return Export(columns, rows)


def _name_sides(before: Row | None, after: Row | None, hidden: frozenset[str]) -> Iterator[tuple[str, str | None]]:
    for side, image in (("before", before), ("after", after)):
        yield from ((f"{side}.{name}", value) for name, value in (mask_row(image, hidden) or {}).items())


def _format(value: str | None) -> str:
    return NULL if value is None else value


def _format_time(ts: int) -> str:
    return tso.to_datetime(ts).isoformat(timespec="milliseconds")


def _build_error(command: str, text: str) -> LostRange:
    return LostRange(text, hint=f"use `{command}`, which has no limit")


_MAKERS: Mapping[str, Callable[[PageLake, PageRequest, tuple[str, str]], Export]] = {
    "row": _export_row, "table": _export_table, "diff": _export_diff,
}  # fmt: skip
