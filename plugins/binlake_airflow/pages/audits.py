"""What the audit pages show: a row's versions, a transaction, some rows of a table as of a commit_ts.

It is read through delta-rs and Arrow within a time limit. Values are only ever treated as data.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property
from typing import Any

from binlake.audit.audit import Audit
from binlake.audit.preview import preview_rows
from binlake.config import Replication
from binlake.ddl.targets import TargetTables
from binlake.errors import LostRange
from binlake.health.values import build_ts_view
from binlake.lake.ddls import read_newest_ddls
from binlake.lake.mutations import Row, RowVersion
from binlake.lake.paths import LakePaths
from binlake.lake.schemas import StateCache
from binlake.lake.seek import TimeBudget
from binlake.lake.sharedtargets import read_target_tables_at
from binlake.lake.transactions import Passages
from binlake.lake.windowlog import WindowLog
from binlake.pipeline import SINKS
from binlake.rows.codec import format_key_text
from binlake.rows.schema import TableDef
from binlake.rules import Rules
from binlake_airflow.pages.history import PAGE
from binlake_airflow.pages.masking import HIDDEN, Masks, mask_row
from binlake_airflow.pages.request import LONGEST, BadPageRequest, NotAllowed, PageRequest
from binlake_airflow.pages.workers import SEARCH_S

VERSIONS = 20
"""Versions of a row, and row changes of a transaction, on one page."""
FILTERED = 300
"""Versions of a row that are looked at for those that changed one column."""
ROWS = 50
"""Rows of a preview."""
_FURTHEST = 1950
"""The last page of a preview begins there: each page reads those before it too."""
_TABLES = 500
_FOUND = 100
"""Tables on one page of a search."""
_IN_PART = 20
_LETTERS = 300
_COLUMNS = 60


_STATES = StateCache()


class PageLake:
    """The lake of one replication, for one request; `sees_masked`: its user may see the values of masked columns."""

    def __init__(self, replication: Replication, *, sees_masked: bool = False) -> None:
        self.masks = Masks(None if sees_masked else replication.mask)
        self.paths = LakePaths.of(replication)
        self.log = WindowLog(self.paths)
        self.audit = _CachedAudit(self.paths, Rules.of(replication), self.log)

    @property
    def missing(self) -> bool:
        """True when the lake is on a local disk and does not exist."""
        return self.paths.local is not None and not self.paths.local.is_dir()


class _CachedAudit(Audit):
    """An Audit for one request: it looks everything up once, so all answers refer to one state of the lake."""

    def __init__(self, paths: LakePaths, rules: Rules, log: WindowLog) -> None:
        super().__init__(paths, rules, log)
        self._tables: dict[int, TargetTables] = {}
        self._had: dict[tuple[str, str, int, int], list[TableDef]] = {}

    @cached_property
    def _landed(self) -> tuple[int, int]:
        return super().read_landed_range()

    @cached_property
    def _range(self) -> tuple[int, int]:
        return super().read_merged_range()

    def read_landed_range(self) -> tuple[int, int]:
        return self._landed

    def read_merged_range(self) -> tuple[int, int]:
        return self._range

    def read_tables_at(self, ts: int) -> TargetTables:
        if ts not in self._tables:
            self._tables[ts] = read_target_tables_at(
                self.paths, self._naming, ts, _STATES.read_state_at(self.paths, ts)
            )
        return self._tables[ts]

    def read_definitions(self, db: str, table: str, after: int, upto: int) -> list[TableDef]:
        key = (db, table, after, upto)
        if key not in self._had:
            self._had[key] = super().read_definitions(*key)
        return self._had[key]


def build_row_view(lake: PageLake, query: PageRequest) -> dict[str, Any]:
    """The newest versions of one row, by table and key, up to a commit_ts. Raises BadPageRequest, BinlakeError."""
    view = build_table_form(lake, query)
    if view["table"] is None:
        return view
    key = query.parse_key()
    column = query.read_text("column")
    view |= {"key": key, "upto": query.read_text("upto"), "after": query.read_text("after"), "column": column}
    if key is None:
        return view
    db, table = query.parse_table() or ("", "")
    require_open_key(lake, db, table)
    upto, after = query.parse_moment("upto"), query.parse_moment("after")
    count = FILTERED if column else VERSIONS
    history = lake.audit.find_newest_of_row(
        db, table, key, upto=upto, count=count, budget=TimeBudget(SEARCH_S), most=2 * count,
        after=-1 if after is None else after,
    )  # fmt: skip
    shown = [change for change in history.changes if not column or has_changed(change, column)]
    view["looked_at"] = len(history.changes)
    passages = Passages(
        lake.log.read_events_at(
            (change.commit_ts for change in shown), ("merge", *(sink.moved_by for sink in SINKS.values()))
        )
    )
    view["versions"] = [
        {**_build_change_view(lake, change), "passages": _build_passages_view(passages, change.commit_ts)}
        for change in reversed(shown)
    ]
    # If the answer is complete, `since` is where the lake starts.
    view |= {"since": build_ts_view(max(history.since, 0)), "whole": history.whole}
    view["older"] = None if history.whole else str(history.since)
    # The changes left out of the oldest commit_ts, if it alone has too many for a page.
    view["left"] = history.left
    merged, landed = lake.audit.read_merged_range()[1], lake.audit.read_landed_range()[1]
    view["read_upto"] = build_ts_view(merged if upto is None else min(upto, merged))
    view["not_merged"] = build_ts_view(landed) if landed > merged else None
    return view


def build_transaction_view(lake: PageLake, query: PageRequest) -> dict[str, Any]:
    """A transaction by commit_ts or start_ts, a page of its row changes, and the stages that processed it."""
    text = query.read_text("ts")
    view: dict[str, Any] = {"ts": text, "transaction": None}
    if not text:
        return view
    if not (text.isascii() and text.isdigit()):
        raise BadPageRequest("give the transaction's commit_ts or start_ts in decimal")
    ts, first = query.parse_moment("ts"), query.parse_number("first")
    transaction = lake.audit.find_transaction(ts or 0, first, VERSIONS, TimeBudget(SEARCH_S))
    if transaction is None:
        lo, hi = lake.audit.read_landed_range()
        raise LostRange(f"there is no transaction with commit_ts or start_ts {ts}; the lake holds ({lo}, {hi}]")
    more = first + len(transaction.changes) < transaction.total
    view["transaction"] = {
        "commit": build_ts_view(transaction.commit_ts),
        "start": build_ts_view(transaction.start_ts),
        "kind": transaction.kind,
        "schema_version": transaction.schema_version,
        "pumps": list(transaction.pumps),
        "bytes": transaction.bytes,
        "remark": transaction.remark,
        "ddl": [{"sql": ddl.sql, "query": ddl.query, "decision": ddl.decision, "reason": ddl.reason}
                for ddl in transaction.ddls],
        "passages": [passage.to_dict() for passage in transaction.passages],
        "total": transaction.total,
        "first": first,
        "changes": [_build_change_view(lake, change) for change in transaction.changes],
        "next": first + len(transaction.changes) if more else None,
    }  # fmt: skip
    return view


def build_table_view(lake: PageLake, query: PageRequest) -> dict[str, Any]:
    """Some rows of a table as of a commit_ts or time."""
    view = build_table_form(lake, query)
    view["at"] = query.read_text("at")
    if view["table"] is None:
        return view
    last = lake.audit.read_merged_range()[1]
    at = query.parse_moment("at")
    at = last if at is None else at
    db, table = query.parse_table() or ("", "")
    first = query.parse_number("first")
    if first > _FURTHEST:
        raise BadPageRequest(f"pages show the first {_FURTHEST + ROWS:,} rows; the file has more")
    preview = preview_rows(lake.audit, lake.log, (db, table), at, ROWS, TimeBudget(SEARCH_S), first)
    hidden = lake.masks.find_hidden(db, table, preview.columns)
    without_keys = lake.masks.hides_key(lake.audit, db, table)
    view["preview"] = {
        "masked": sorted(hidden),
        "as_of": build_ts_view(preview.ts),
        "columns": list(preview.columns),
        "rows": [
            [HIDDEN if name in hidden else cut_text(row.get(name)) for name in preview.columns] for row in preview.rows
        ],
        # With the key columns of that time: the table may have others today.
        "keys": [
            None if without_keys else build_key_for_link(format_key_text([row.get(n) for n in preview.key_columns]))
            for row in preview.rows
        ],
        "more": preview.more,
        "first": first,
        "next": first + ROWS if preview.more and len(preview.rows) == ROWS and first < _FURTHEST else None,
        "changes": preview.changes,
        "inexact": preview.inexact,
        "mirror": {"delta_version": preview.base.delta_version, **build_ts_view(preview.base.hi)},
    }
    return view


def build_incomplete_tables_view(lake: PageLake) -> dict[str, Any]:
    """Tables whose rows the lake may know only in part, by name, and why; only the first ones, and how many more."""
    try:
        tables = sorted(lake.audit.find_incomplete_tables(lake.audit.read_merged_range()[1]).items())
    except LostRange:
        # An empty lake knows no tables.
        tables = []
    rows = [{"table": ".".join(name), "why": why} for name, why in tables[:_IN_PART]]
    return {"tables": rows, "more": len(tables) - len(rows)}


def build_ddls_view(lake: PageLake, upto: int | None = None, count: int = PAGE) -> dict[str, Any]:
    """The DDL that landed at or below `upto`, newest first; all DDL of one commit_ts are on one page."""
    newest = read_newest_ddls(lake.paths, count + 1, upto)
    last = newest[:count][-1].commit_ts if newest else 0
    lines = [line for line in newest if line.commit_ts >= last]
    # One commit_ts may have more DDL than were asked for; then it is unknown whether there are older ones.
    more = len(newest) > len(lines) or (len(newest) > count and bool(read_newest_ddls(lake.paths, 1, last - 1)))
    rows = [
        {**vars(line), "commit": build_ts_view(line.commit_ts), "commit_ts": str(line.commit_ts),
         "query": cut_text(line.query), "sql": cut_text(line.sql)}
        for line in lines
    ]  # fmt: skip
    return {"ddls": rows, "older": str(last - 1) if more else None}


def find_tables_view(lake: PageLake, query: PageRequest) -> dict[str, Any]:
    """A page of the present tables whose `db.table` contains `q`, without regard to case, by name."""
    text, first = query.read_text("q"), query.parse_number("first")
    try:
        tables = lake.audit.read_tables_at(lake.audit.read_merged_range()[1]).list_names()
    except LostRange:
        # An empty lake knows no tables.
        tables = []
    names = sorted(name for name in map(".".join, tables) if text.casefold() in name.casefold())
    found = names[first : first + _FOUND]
    more = first + len(found) < len(names)
    return {"q": text, "found": found, "total": len(names), "first": first, "next": first + _FOUND if more else None}


def build_table_form(lake: PageLake, query: PageRequest) -> dict[str, Any]:
    """The present tables, and the requested one with its columns and those of its key."""
    name = query.parse_table()
    tables = lake.audit.read_tables_at(lake.audit.read_merged_range()[1])
    view: dict[str, Any] = {
        "tables": [".".join(each) for each in tables.list_names()[:_TABLES]],
        "table": None if name is None else ".".join(name),
        "key_columns": [],
        "key": None,
    }
    if name is not None:
        definition: TableDef = lake.audit.read_last_definition(*name)
        view |= {
            "key_columns": list(definition.find_identity().columns), "identity": definition.find_identity().kind,
            "columns": [column.name for column in definition.row_columns],
        }  # fmt: skip
    return view


def has_changed(change: RowVersion, column: str) -> bool:
    """Whether a change gave the column another value, or the row its first or last one."""
    if change.before is None or change.after is None:
        return True
    return change.before.get(column) != change.after.get(column)


def require_open_key(lake: PageLake, db: str, table: str) -> None:
    """Raises NotAllowed if rows of the table must not be looked up by their key, which has a masked column."""
    if lake.masks.hides_key(lake.audit, db, table):
        raise NotAllowed("the key of this table is masked: to look up a row by it needs the right to edit the DAG")


def hide_keys_of_validation(lake: PageLake, validated: dict[str, Any] | None) -> None:
    """Hide keys with a masked column among the rows that validation lists."""
    for row in (validated or {}).get("listed", ()):
        db, _, table = str(row["table"]).partition(".")
        if lake.masks.hides_key(lake.audit, db, table):
            row["key"] = HIDDEN


def _build_change_view(lake: PageLake, change: RowVersion) -> dict[str, Any]:
    before, after = change.before or {}, change.after or {}
    names = list(dict.fromkeys([*before, *after]))
    hidden = lake.masks.find_hidden(change.db, change.table, names)
    if lake.masks.hides_key(lake.audit, change.db, change.table):
        change = replace(change, key=HIDDEN, new_key=None if change.new_key is None else HIDDEN)
    is_open = change.key != HIDDEN
    return {
        "commit": build_ts_view(change.commit_ts),
        "start_ts": str(change.start_ts),
        "seq": change.seq,
        "table": f"{change.db}.{change.table}",
        "op": change.op,
        "key": cut_text(change.key),
        "new_key": cut_text(change.new_key),
        # The keys for links to the histories.
        "key_asked": build_key_for_link(change.key) if is_open else None,
        "new_key_asked": build_key_for_link(change.new_key) if is_open else None,
        "columns": [build_column_view(name, change.before, change.after, hidden) for name in names[:_COLUMNS]],
        "hidden": max(len(names) - _COLUMNS, 0),
    }


def build_column_view(
    name: str, before: Row | None, after: Row | None, hidden: frozenset[str] = frozenset()
) -> dict[str, Any]:
    """One column before and after a change; of the columns `hidden` only whether it changed."""
    old, new = (None if image is None else image.get(name) for image in (before, after))
    shown = [
        None if image is None else image.get(name) for image in (mask_row(before, hidden), mask_row(after, hidden))
    ]
    return {
        "name": name,
        "masked": name in hidden,
        "before": cut_text(shown[0]),
        "after": cut_text(shown[1]),
        "had": before is not None and name in before,
        "has": after is not None and name in after,
        "changed": before is not None and after is not None and old != new,
    }


def cut_text(text: str | None) -> str | None:
    """A value as a page shows it."""
    return text if text is None or len(text) <= _LETTERS else f"{text[:_LETTERS]}… ({len(text):,} characters)"


def build_key_for_link(key: str | None) -> str | None:
    """The key for use in a link; None if it is too long for a request."""
    return key if key is not None and len(key) <= LONGEST else None


def _build_passages_view(passages: Passages, commit_ts: int) -> list[dict[str, str]]:
    return _sort_passages(passage.to_dict() for passage in passages.find_at(commit_ts))


def _sort_passages(passages: Iterable[dict[str, str]]) -> list[dict[str, str]]:
    return sorted(passages, key=lambda passage: passage["at"])
