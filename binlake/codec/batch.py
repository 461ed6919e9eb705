"""Row changes of many transactions as columns, for Arrow: one `MutationBatch` per Arrow batch (DESIGN 2).

Use in `mapInArrow`:

    batch = MutationBatch(route=lambda table: (table.db, table.name))     # None from route = filtered out
    for payload, commit_ts, start_ts in rows:
        batch.add(payload, commit_ts, start_ts, schemas.place(commit_ts))
        if len(batch) >= 8192:
            yield batch.take()                                            # a pyarrow.RecordBatch, the batch is empty
    if len(batch):
        yield batch.take()

Columns and types are those of the lake's table `mutation`, in its order (`MUTATION_SCHEMA`).
"""

from __future__ import annotations

from collections.abc import Callable
from json.encoder import encode_basestring
from typing import Any

import numpy as np
import pyarrow as pa

from binlake.codec.plan import Image, Names, Values
from binlake.codec.transaction import DecodeStats, TableLookup, raw_changes
from binlake.schema.info import TableDef
from binlake.tso import LOGICAL_BITS

Route = Callable[[TableDef], tuple[str, str] | None]
"""Source definition -> (db, table) at the target, or None when a filter excludes the table."""

_MS_PER_DAY = 86_400_000
_MAP = pa.map_(pa.string(), pa.string())
MUTATION_SCHEMA = pa.schema(
    [
        ("commit_ts", pa.int64()),
        ("start_ts", pa.int64()),
        ("seq", pa.int32()),
        ("commit_date", pa.date32()),
        ("schema_version", pa.int64()),
        ("source_db", pa.string()),
        ("source_table", pa.string()),
        ("db", pa.string()),
        ("table", pa.string()),
        ("table_id", pa.int64()),
        ("op", pa.string()),
        ("key", pa.string()),
        ("before", _MAP),
        ("after", _MAP),
    ]
)


def key_text(values: Values) -> str:
    """The `key` column: a compact JSON array of texts, null for NULL."""
    return f"[{','.join('null' if value is None else encode_basestring(value) for value in values)}]"


def same_name(table: TableDef) -> tuple[str, str]:
    """The route that changes nothing."""
    return table.db, table.name


class MapColumn:
    """Rows of (names, values) as an Arrow MAP<string, string>; names are stored once per shape, not per row."""

    def __init__(self) -> None:
        self._shapes: dict[Names, int] = {}
        self._names: list[str] = []
        self._sizes: list[int] = []
        self._starts: list[int] = []
        self._rows: list[int] = []
        self._values: Values = []
        self._last: tuple[Names, int] = ((), -1)

    def append(self, image: Image | None) -> None:
        """Add a row; None is a NULL map."""
        if image is None:
            self._rows.append(-1)
            return
        names, values = image
        if names is not self._last[0]:
            self._last = names, self._shape(names)
        self._rows.append(self._last[1])
        self._values.extend(values)

    def _shape(self, names: Names) -> int:
        found = self._shapes.get(names)
        if found is None:
            found = self._shapes[names] = len(self._sizes)
            self._sizes.append(len(names))
            self._starts.append(len(self._names))
            self._names.extend(names)
        return found

    def to_arrow(self) -> pa.MapArray:
        """All rows as one array."""
        shapes = np.asarray(self._rows, dtype=np.int64)
        # The extra entry is what shape -1, the NULL map, finds.
        sizes = np.asarray([*self._sizes, 0], dtype=np.int64)[shapes]
        ends = np.cumsum(sizes)
        within = np.arange(len(self._values)) - np.repeat(ends - sizes, sizes)
        names = within + np.repeat(np.asarray([*self._starts, 0], dtype=np.int64)[shapes], sizes)
        keys = pa.array(self._names, pa.string()).take(pa.array(names, pa.int64()))
        offsets = pa.array(np.concatenate(([0], ends)).astype(np.int32), pa.int32(), mask=np.append(shapes < 0, False))
        return pa.MapArray.from_arrays(offsets, keys, pa.array(self._values, pa.string()))


class MutationBatch:
    """Collects decoded row changes column by column. Errors as `decode_transaction`; they spoil the batch."""

    def __init__(self, route: Route = same_name) -> None:
        self.stats = DecodeStats()
        self._route = route
        self._routed: dict[TableDef, _Names4 | None] = {}
        self._clear()

    def _clear(self) -> None:
        self._transactions: list[tuple[int, int, int]] = []
        self._counts: list[int] = []
        self._seq: list[int] = []
        self._tables: dict[TableDef, int] = {}
        self._table: list[int] = []
        self._op: list[str] = []
        self._key: list[str] = []
        self._before, self._after = MapColumn(), MapColumn()

    def __len__(self) -> int:
        return len(self._seq)

    def add(self, payload: bytes, commit_ts: int, start_ts: int, tables: TableLookup) -> int:
        """Decode a transaction by the definitions of its place; returns the rows added, after filters.

        `key` is that of the row before the change, for inserts that of the row itself.
        """
        had = len(self._seq)
        version, changes = raw_changes(payload, commit_ts, start_ts, tables, self.stats)
        table, wanted = None, False
        for seq, plan, op, before, after in changes:
            if plan.table is not table:
                table, wanted = plan.table, self._names_of(plan.table) is not None
            if not wanted:
                continue
            self._seq.append(seq)
            self._table.append(self._tables.setdefault(plan.table, len(self._tables)))
            self._op.append(op)
            image = before or after
            self._key.append(key_text(plan.key(image)) if image else "[]")
            self._before.append(before)
            self._after.append(after)
        self._transactions.append((commit_ts, start_ts, version))
        self._counts.append(len(self._seq) - had)
        return len(self._seq) - had

    def take(self) -> pa.RecordBatch:
        """The rows so far as a record batch of MUTATION_SCHEMA; the batch is empty afterwards."""
        transactions = np.asarray(self._transactions, dtype=np.int64).reshape(-1, 3)
        commit, start, version = np.repeat(transactions, self._counts, axis=0).T
        names = [self._names_of(table) or ("", "", "", "") for table in self._tables]
        which = pa.array(self._table, pa.int32())
        by_table = [pa.array(column, pa.string()).take(which) for column in zip(*names, strict=True)]
        columns: list[Any] = [
            pa.array(commit, pa.int64()),
            pa.array(start, pa.int64()),
            pa.array(self._seq, pa.int32()),
            pa.array(((commit >> LOGICAL_BITS) // _MS_PER_DAY).astype(np.int32), pa.date32()),
            pa.array(version, pa.int64()),
            *(by_table or [pa.array([], pa.string())] * 4),
            pa.array([table.id for table in self._tables], pa.int64()).take(which),
            pa.array(self._op, pa.string()),
            pa.array(self._key, pa.string()),
            self._before.to_arrow(),
            self._after.to_arrow(),
        ]
        self._clear()
        return pa.RecordBatch.from_arrays(columns, schema=MUTATION_SCHEMA)

    def _names_of(self, table: TableDef) -> _Names4 | None:
        if table not in self._routed:
            target = self._route(table)
            self._routed[table] = None if target is None else (table.db, table.name, *target)
        return self._routed[table]


_Names4 = tuple[str, str, str, str]
