"""Random histories of a table whose target has extra columns, and the values that those columns must keep."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from random import Random

from support.windows import NAME, Window

from binlake.changes.net import RowEvent, compute_net_changes, encode_row_key
from binlake.changes.net.net import Op
from binlake.changes.net.origins import trace_origins
from binlake.rows.schema import TableDef
from binlake.statements import (
    BatchLimits,
    PreserveStatements,
    TableStatements,
    build_images_from_rows,
    format_copy_name,
)
from binlake.statements.literal import quote_qualified_name

Row = dict[str, str | None]


class History:
    """Changes of one table with the columns id (primary key), u (unique) and v; the source is valid after each step."""

    def __init__(self, rows: Sequence[tuple[int, int | None, str]]) -> None:
        self.rows: dict[str, Row] = {str(id_): _row(id_, u, v) for id_, u, v in rows}
        self.events: list[RowEvent] = []

    def insert(self, id_: int, u: int | None, v: str) -> History:
        """INSERT."""
        return self._record(None, _row(id_, u, v))

    def delete(self, id_: int) -> History:
        """DELETE."""
        return self._record(self.rows[str(id_)], None)

    def update(self, id_: int, **columns: object) -> History:
        """UPDATE; columns that are not named keep their values."""
        before = self.rows[str(id_)]
        return self._record(before, {**before, **{k: None if v is None else str(v) for k, v in columns.items()}})

    def at_random(self, chance: Random, steps: int, *, nulls: bool) -> History:
        """Make `steps` random changes among six ids and six values of u."""
        for _ in range(steps):
            ids = [n for n in range(1, 7) if str(n) not in self.rows]
            us = [n for n in range(1, 7) if str(n) not in {row["u"] for row in self.rows.values()}]
            free: list[int | None] = [*us, *([None] if nulls else [])]
            there = [int(key) for key in self.rows]
            kind = chance.choice(["insert", "delete", "v", "u", "u", "u", "id", "id", "id"])
            if kind == "insert" and ids and free:
                self.insert(chance.choice(ids), chance.choice(free), chance.choice("abc"))
            elif kind == "delete" and there:
                self.delete(chance.choice(there))
            elif kind == "v" and there:
                self.update(chance.choice(there), v=chance.choice("abc"))
            elif kind == "u" and there and free:
                self.update(chance.choice(there), u=chance.choice(free))
            elif kind == "id" and there and ids:
                self.update(chance.choice(there), id=chance.choice(ids))
        return self

    def _record(self, before: Row | None, after: Row | None) -> History:
        place = len(self.events) + 1
        op: Op = "insert" if before is None else "delete" if after is None else "update"
        self.events.append(RowEvent(place, place - 1, 0, op, before, after))
        if before is not None:
            del self.rows[str(before["id"])]
        if after is not None:
            self.rows[str(after["id"])] = after
        return self

    def expected_values(self, own: dict[str, object], key: str) -> dict[str, object]:
        """The extra columns' values (`own`, by the text of column `key`) in the end: they move with their row."""
        held = dict(own)
        for event in self.events:
            before, after = event.require_images()
            if before is not None and after is not None and before[key] != after[key]:
                taken = held.pop(str(before[key]), None)
                held.pop(str(after[key]), None)
                if taken is not None:
                    held[str(after[key])] = taken
        return {key_text: value for key_text, value in held.items() if key_text in {r[key] for r in self.rows.values()}}


def _row(id_: int, u: int | None, v: str) -> Row:
    return {"id": str(id_), "u": None if u is None else str(u), "v": v}


def window(definition: TableDef, history: History, lo: int, hi: int, *, batch: int = 2) -> Window:
    """One segment of the history as convert would plan it, in batches of `batch` rows."""
    made = Window(lo, hi)
    copy = quote_qualified_name("tidb_binlog", format_copy_name(NAME, f"{lo}-{hi}", 0, definition.db, definition.name))
    limits, columns = BatchLimits(batch), ["id", "u", "v"]
    writer = TableStatements(definition, 0, limits=limits)
    keeper = PreserveStatements(definition, 0, copy, limits=limits)
    identity = definition.find_identity()
    changes = compute_net_changes(history.events, identity)
    moves = [
        (encode_row_key(e.before, identity.columns), encode_row_key(e.after, identity.columns))
        for e in history.events
        if e.before is not None and e.after is not None
    ]
    traced = trace_origins((old, new) for old, new in moves if old != new)
    several = len(definition.list_unique_keys()) > 1
    gone = [change.before for change in changes if change.op == "delete"]
    anew = {c.key: traced.get(c.key, c.key) for c in changes if c.op != "delete" and (several or c.key in traced)}
    finals = {change.key: change.after for change in changes if change.after is not None}
    stayed = [key for key, origin in anew.items() if origin == key]
    moved = [(key, origin) for key, origin in anew.items() if origin not in (None, key)]

    def images(keys: Sequence[str | None]) -> dict[str, object]:
        parts = [json.loads(str(key)) for key in keys]
        return build_images_from_rows(
            [dict(zip(identity.columns, part, strict=True)) for part in parts], identity.columns
        )

    made.written += writer.render_deletes(build_images_from_rows(gone, identity.columns)) if gone else ()  # type: ignore[arg-type]
    for is_anew in (False, True):
        rows = [row for key, row in finals.items() if (key in anew) == is_anew]
        made.written += writer.render_writes(build_images_from_rows(rows, columns), anew=is_anew) if rows else ()
    kept = [origin for origin in anew.values() if origin is not None]
    made.written += keeper.keeps(images(kept)) if kept else ()
    made.written += keeper.build_restores(images(stayed)) if stayed else ()
    if moved:
        keys, origin_keys = zip(*moved, strict=True)
        made.written += keeper.build_moved_restores(images(keys), images(origin_keys))
    if kept:
        made.plans[0] = replace(made.plans[0], copies=((copy, quote_qualified_name(definition.db, definition.name)),))
    return made
