"""Write the statements of one batch of a worker: one per change, or one per run of the same kind (`multiple-rows`).

Sources: data-migration 1.7, 6.6, 6.7 (DM's groups), S4-17 to S4-20. If DM's merged statement can differ from one
statement after the other, the changes are not merged: updates that change a secondary unique key (ON DUPLICATE KEY
UPDATE fails on two unique keys at once), and CASE updates of rows that share a key or on a server other than TiDB (only
TiDB evaluates every SET on the row's old values). Deletes of rows without a key are not merged, because each needs
LIMIT 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Literal

from binlake.changes.net import RowEvent
from binlake.changes.net.net import Row
from binlake.changes.ordered.forms import OrderedStatement, RowForms
from binlake.changes.ordered.keys import UNKNOWN, ConflictKey
from binlake.errors import Permanent, SchemaError
from binlake.statements.batch import UNCHECKED, BatchLimits
from binlake.statements.literal import quote_name

Kind = Literal["insert", "replace", "upsert", "case", "delete", "single"]


@dataclass(frozen=True)
class OrderedChange:
    """A row change to write: the forms of its table, its conflict keys, and whether it must be safe to repeat."""

    forms: RowForms
    event: RowEvent
    keys: tuple[ConflictKey, ...]
    safe: bool

    @property
    def alone(self) -> bool:
        """True if it is unknown with which changes this one can collide."""
        return any(UNKNOWN in key.values for key in self.keys)


@dataclass(frozen=True)
class Merger:
    """Writes statements. `multiple_rows`: merge neighbours. `limits`: bounds of a statement.

    Raises Permanent for a row that does not fit into a packet.
    """

    multiple_rows: bool
    limits: BatchLimits

    def render_statements(self, changes: Sequence[OrderedChange]) -> list[OrderedStatement]:
        """The SQL of `changes`, which run in this order on one connection."""
        if not self.multiple_rows:
            statements = [statement for change in changes for statement in write_single(change)]
        else:
            statements = [statement for group in self._group_changes(changes) for statement in _merge(group)]
        for statement in statements:
            self._require_fits_packet(statement)
        return statements

    def _group_changes(self, changes: Sequence[OrderedChange]) -> Iterator[list[OrderedChange]]:
        for _, neighbours in groupby(changes, key=_group_key):
            group: list[OrderedChange] = []
            used: set[ConflictKey] = set()
            size = 0
            for change in neighbours:
                text = sum(len(statement.sql.encode()) for statement in write_single(change))
                shared = _merge_kind(change) == "case" and not used.isdisjoint(change.keys)
                if group and (shared or size + text > self.limits.bytes):
                    yield group
                    group, size = [], 0
                    used.clear()
                group.append(change)
                used.update(change.keys)
                size += text
            yield group

    def _require_fits_packet(self, statement: OrderedStatement) -> None:
        if self.limits.takes(statement.text):
            return
        raise Permanent(
            f"a row needs a statement of {len(statement.text.encode())} bytes, and the target accepts packets of"
            f" {self.limits.packet} bytes",
            where={"statement": statement.sql[:200]},
            hint="raise max_allowed_packet on the target, then run the window again",
        )


def write_single(change: OrderedChange) -> list[OrderedStatement]:
    """The statements of one change alone."""
    return [replace(statement, place=str(change.event.commit_ts)) for statement in _write_single_sql(change)]


def _write_single_sql(change: OrderedChange) -> list[OrderedStatement]:
    before, after = change.event.require_images()
    if before is None:
        return [
            change.forms.replace(_require_image(after)) if change.safe else change.forms.insert(_require_image(after))
        ]
    if after is None:
        return [change.forms.delete(before, safe=change.safe)]
    if change.safe:
        return change.forms.update_safely(before, after)
    return [change.forms.update(before, after)]


def _merge_kind(change: OrderedChange) -> Kind:
    """The kind of changes with which `change` can be merged: DM's classes of operations."""
    before, after = change.event.require_images()
    forms = change.forms
    if before is None:
        return "replace" if change.safe else "insert"
    if after is None:
        return "delete" if forms.is_keyed(before) else "single"
    if change.safe:
        return "single"
    if not forms.moves(before, after):
        return "upsert"
    return "case" if forms.dialect == "tidb" and forms.is_keyed(before) else "single"


def _group_key(change: OrderedChange) -> tuple[int, Kind, bool]:
    """Neighbours with the same group key become one statement; all rows of a lenient statement must need it."""
    _, after = change.event.require_images()
    return id(change.forms), _merge_kind(change), after is not None and change.forms.has_error_values(after)


def _merge(group: list[OrderedChange]) -> list[OrderedStatement]:
    kind = _merge_kind(group[0])
    if kind == "single" or (len(group) == 1 and kind != "upsert"):
        return [statement for change in group for statement in write_single(change)]
    merged = _MERGED[kind](group[0].forms, [change.event.require_images() for change in group])
    first, last = group[0].event.commit_ts, group[-1].event.commit_ts
    # A repetition finds no rows to delete, so the number of rows is not checked.
    expect = UNCHECKED if kind == "delete" and group[0].safe else merged.expect
    _, after = group[0].event.require_images()
    sql = merged.sql if after is None else group[0].forms.render_lenient_if_needed(merged.sql, after)
    return [OrderedStatement(sql, expect, str(first) if first == last else f"{first} to {last}")]


_Images = list[tuple[Row | None, Row | None]]


def _merge_inserts(forms: RowForms, images: _Images) -> OrderedStatement:
    return OrderedStatement(f"INSERT {forms.into} {_format_rows(forms, images)}", len(images))


def _merge_replaces(forms: RowForms, images: _Images) -> OrderedStatement:
    return OrderedStatement(f"REPLACE {forms.into} {_format_rows(forms, images)}")


def _merge_upserts(forms: RowForms, images: _Images) -> OrderedStatement:
    names = [quote_name(column.name) for column in forms.columns]
    sets = ",".join(f"{name}=VALUES({name})" for name in names)
    return OrderedStatement(f"INSERT {forms.into} {_format_rows(forms, images)} ON DUPLICATE KEY UPDATE {sets}")


def _merge_deletes(forms: RowForms, images: _Images) -> OrderedStatement:
    conditions = " OR ".join(f"({forms.render_condition(_require_image(before))})" for before, _ in images)
    return OrderedStatement(f"DELETE FROM {forms.name} WHERE {conditions}", len(images))


def _merge_cases(forms: RowForms, images: _Images) -> OrderedStatement:
    conditions = [forms.render_condition(_require_image(before)) for before, _ in images]
    rows = [forms.render_literals(_require_image(after)) for _, after in images]
    sets = []
    for number, column in enumerate(forms.columns):
        whens = " ".join(f"WHEN {where} THEN {row[number]}" for where, row in zip(conditions, rows, strict=True))
        sets.append(f"{quote_name(column.name)}=CASE {whens} END")
    where = " OR ".join(f"({condition})" for condition in conditions)
    return OrderedStatement(f"UPDATE {forms.name} SET {', '.join(sets)} WHERE {where}", len(images))


_MERGED = {
    "insert": _merge_inserts,
    "replace": _merge_replaces,
    "upsert": _merge_upserts,
    "delete": _merge_deletes,
    "case": _merge_cases,
}


def _format_rows(forms: RowForms, images: _Images) -> str:
    return ",".join(forms.render_values(_require_image(after)) for _, after in images)


def _require_image(row: Row | None) -> Row:
    if row is None:
        raise SchemaError("a row change lacks an image")
    return row
