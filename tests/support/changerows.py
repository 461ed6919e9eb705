"""Random row changes as rows of `mutation`, with the net changes that the pure reference computes from them.

Two tables span three segments with different identities. Keys move, repeat, and have several columns; texts are those
that break JSON; images lack columns that were added later. By default, the histories need not be valid for a table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from random import Random
from typing import Any

import pyarrow as pa

from binlake.changes.net import RowEvent, compute_net_changes
from binlake.ddl.definitions import Cell
from binlake.rows.codec import MUTATION_SCHEMA
from binlake.rows.schema import RowIdentity

ODD = ["", "a", "A", '"', "\\", "\n", "\x1f", "\x7f", "é", "日", "😀", "null", ",", "0", '","', "\u2028", "a" * 60]
STARTS = (300, 600)
END = 1000
KEYS = (
    RowIdentity("primary", ("a",)),
    RowIdentity("unique", ("b", "a")),
    RowIdentity("row", ("a", "b", "c")),
    RowIdentity("primary", ("b",)),
)
FILLED: Mapping[str, str | None] = {"a": None, "b": 'B"', "c": "C"}
"""The values that fill columns which an older row image lacks; every image has `a`."""

Row = dict[str, str | None]
Comparable = tuple[Any, ...]


@dataclass
class Drawn:
    """Row changes of `d.t0`, `d.t1`, ... in log order, and the identity of each table by segment."""

    random: Random
    tables: int = 2
    events: int = 60
    legal: bool = False
    identities: dict[str, list[RowIdentity]] = field(default_factory=dict)
    found: list[tuple[str, RowEvent]] = field(default_factory=list)

    def __post_init__(self) -> None:
        for n in range(self.tables):
            drawn = [self.random.choice(KEYS) for _ in range(len(STARTS) + 1)]
            # Rows that differ under one identity may be equal under the next, so legal histories use one identity.
            self.identities[f"t{n}"] = drawn[:1] * len(drawn) if self.legal else drawn
        held: dict[str, list[Row]] = {name: [] for name in self.identities}
        for step in range(self.events):
            name = self.random.choice(list(held))
            self._change(name, held[name], 1 + step * (END - 100) // self.events, step)

    def _change(self, name: str, rows: list[Row], commit_ts: int, step: int) -> None:
        identity = self.identities[name][sum(start <= commit_ts for start in STARTS)]
        before = self.random.choice(rows) if rows and self.random.random() < 0.6 else None
        after = None if before is not None and self.random.random() < 0.4 else self._row(before, identity)
        if self.legal and after is not None and self._is_key_taken(rows, before, after, identity):
            return
        if before is not None and (self.legal or self.random.random() < 0.9):
            rows.remove(before)
        if after is not None:
            rows.append(after)
        op: Any = "insert" if before is None else "delete" if after is None else "update"
        ts = commit_ts if self.legal or self.random.random() < 0.8 else commit_ts // 7 * 7 + 1
        start = ts - 1 if self.legal else ts - self.random.randint(1, 2)
        self.found.append(
            (name, RowEvent(ts, start, step, op, self._drop_filled_columns(before), self._drop_filled_columns(after)))
        )

    def _row(self, base: Row | None, identity: RowIdentity) -> Row:
        row: Row = {"a": self.random.choice(ODD), "b": self.random.choice(ODD), "c": self.random.choice([None, *ODD])}
        if base is not None and self.random.random() < 0.5:
            row |= {name: base[name] for name in identity.columns if name != "c"}
        return row

    def _drop_filled_columns(self, row: Row | None) -> Row | None:
        """The image, sometimes reordered, and sometimes without columns that hold their fill value."""
        if row is None:
            return None
        kept = [name for name in row if row[name] != FILLED[name] or name == "a" or self.random.random() < 0.3]
        if self.random.random() < 0.1:
            self.random.shuffle(kept)
        return {name: row[name] for name in kept}

    def _is_key_taken(self, rows: Iterable[Row], before: Row | None, after: Row, identity: RowIdentity) -> bool:
        own = [after[name] for name in identity.columns]
        return identity.kind != "row" and any(
            row is not before and [row[name] for name in identity.columns] == own for row in rows
        )

    def cells(self) -> list[Cell]:
        """The cells of all tables and segments."""
        edges = [1, *STARTS, END]
        return [
            Cell("d", name, n, edges[n], edges[n + 1], one.kind, one.columns, tuple(FILLED[c] for c in one.columns))
            for name, identities in self.identities.items()
            for n, one in enumerate(identities)
        ]

    def rows(self) -> pa.Table:
        """The changes as rows of `mutation`, sometimes shuffled, and in several chunks."""
        shuffled = list(self.found)
        if self.random.random() < 0.5:
            self.random.shuffle(shuffled)
        cut = self.random.randrange(len(shuffled) + 1)
        return pa.concat_tables([mutation_rows(shuffled[:cut]), mutation_rows(shuffled[cut:])])

    def expected(self, strict: Sequence[Cell] = ()) -> set[Comparable]:
        """The net changes that the reference computes, in the form of `comparable`. Raises SchemaError."""
        wanted = set()
        for cell in self.cells():
            own = [e for name, e in self.found if name == cell.table and cell.since <= e.commit_ts < cell.until]
            identity = RowIdentity(cell.identity, cell.columns)  # type: ignore[arg-type]
            filled = dict(zip(cell.columns, cell.filled, strict=True))
            for change in compute_net_changes(own, identity, filled, strict=cell in strict):
                place = {"db": cell.db, "table": cell.table, "segment": cell.segment}
                wanted.add(comparable({**vars(change), **place}))
        return wanted


def mutation_rows(events: Iterable[tuple[str, RowEvent]]) -> pa.Table:
    """`events` (table, change) as rows of `mutation`; `key` is a dummy because net changes do not use it."""
    rows = [
        {
            "commit_ts": e.commit_ts, "start_ts": e.start_ts, "seq": e.seq, "commit_date": date(2026, 1, 1),
            "schema_version": 1, "source_db": "d", "source_table": name, "db": "d", "table": name, "table_id": 1,
            "op": e.op, "key": "-", "new_key": None, "before": _pairs(e.before), "after": _pairs(e.after),
        }
        for name, e in events
    ]  # fmt: skip
    return pa.Table.from_pylist(rows, schema=MUTATION_SCHEMA)


def _pairs(image: Mapping[str, str | None] | None) -> list[tuple[str, str | None]] | None:
    return None if image is None else list(image.items())


PLAIN = ("segment", "db", "table", "key", "identity", "op", "copies", "first_commit_ts", "last_commit_ts", "mutations")


def comparable(change: Mapping[str, Any]) -> Comparable:
    """A net change as a hashable value; the entries of an image have no order."""
    images = [
        None if change[name] is None else tuple(sorted(dict(change[name]).items())) for name in ("before", "after")
    ]
    return (*(change[name] for name in PLAIN), *images)


def comparable_rows(found: pa.Table) -> set[Comparable]:
    """A table of net changes as a set of values. Raises ValueError when a change occurs twice."""
    got = [comparable(row) for row in found.to_pylist()]
    if len(set(got)) != len(got):
        raise ValueError("a net change is there twice")
    return set(got)
