"""The transactions of one writer: a pure stream of row changes, given the seed and the rows so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal

from binlake.rows.codec import MutationBuilder, encode_prewrite_value
from binlake.testkit.workload.catalog import Row, WorkloadTable
from binlake.testkit.workload.spec import Faults, Spec

Fate = Literal["commit", "rollback", "lose_commit", "lose_rollback", "hold", "double"]
_FATES: tuple[Fate, ...] = ("rollback", "lose_commit", "lose_rollback", "hold", "double")
_TRIES = 8  # tries to pick a row that is not in an open transaction


@dataclass(frozen=True, slots=True)
class WorkloadChange:
    """One row change; `before` None = insert, `after` None = delete."""

    table: WorkloadTable
    row_id: int
    before: Row | None
    after: Row | None


@dataclass(frozen=True, slots=True)
class Draft:
    """A transaction that is not written yet. `holds`: how many later transactions begin before a held one ends."""

    changes: tuple[WorkloadChange, ...]
    fate: Fate
    holds: int

    def encode_value(self, schema_version: int) -> bytes:
        """Its PrewriteValue: a mutation for each table, rows in the order they changed."""
        builders: dict[int, MutationBuilder] = {}
        for change in self.changes:
            table = change.table
            builder = builders.get(table.table_id) or builders.setdefault(table.table_id, table.build_builder())
            rowid = 0 if table.keyed else change.row_id
            if change.before is None:
                builder.insert(change.after or {}, rowid)
            elif change.after is None:
                builder.delete(change.before, rowid)
            else:
                builder.update(change.before, change.after, rowid)
        return encode_prewrite_value(schema_version, [builder.message for builder in builders.values()])


class Generator:
    """Generates the transactions of writer number `writer`, which alone uses it. Not thread-safe."""

    def __init__(self, spec: Spec, writer: int) -> None:
        self._spec = spec
        self._writer = writer
        self._random = Random(f"{spec.seed}/writer/{writer}")
        self._open: set[tuple[int, int]] = set()

    def draft(self, tables: Sequence[WorkloadTable]) -> Draft:
        """The next transaction; until `end`, no other transaction changes its rows."""
        fate = choose_fate(self._spec.faults, self._random.random())
        overlay: dict[tuple[int, int], Row | None] = {}
        count = self._random.randint(*self._spec.txn_rows)
        changes = tuple(self._build_change(self._random.choice(tables), overlay) for _ in range(count))
        self._open.update(overlay)
        return Draft(changes, fate, self._random.randint(1, 20))

    def end(self, draft: Draft, *, committed: bool) -> None:
        """Record that the transaction ended; when `committed`, its changes are in the tables."""
        for change in draft.changes:
            if committed:
                change.table.parts[self._writer].put(change.row_id, change.after)
            self._open.discard((change.table.table_id, change.row_id))

    def _build_change(self, table: WorkloadTable, overlay: dict[tuple[int, int], Row | None]) -> WorkloadChange:
        part = table.parts[self._writer]
        (kind,) = self._random.choices(("insert", "update", "delete"), self._spec.mix)
        row_id = self._pick_existing(table, kind == "update", overlay) if kind != "insert" else None
        if row_id is None:
            row_id = part.take_id()
            change = WorkloadChange(table, row_id, None, table.build_row(row_id, self._random))
        else:
            before = overlay.get((table.table_id, row_id)) or part.rows[row_id]
            after = table.change_row(before, self._random) if kind == "update" else None
            change = WorkloadChange(table, row_id, before, after)
        overlay[table.table_id, row_id] = change.after
        return change

    def _pick_existing(self, table: WorkloadTable, hot: bool, overlay: dict[tuple[int, int], Row | None]) -> int | None:
        """A row that this transaction may change; None if none was found. `hot` False: do not pick a hot row."""
        ids, spec = table.parts[self._writer].ids, self._spec
        hot_ids = min(spec.hot_keys, len(ids))
        for _ in range(_TRIES if ids else 0):
            only_hot = hot and hot_ids and self._random.random() < spec.hot_share
            low, high = (0, hot_ids) if only_hot else (0 if hot else hot_ids, len(ids))
            if low >= high:
                return None
            row_id = ids[self._random.randrange(low, high)]
            key = (table.table_id, row_id)
            if key not in self._open and (key not in overlay or overlay[key] is not None):
                return row_id
        return None


def choose_fate(faults: Faults, chance: float) -> Fate:
    """The fate of a transaction that drew `chance` (0 to 1)."""
    for fate in _FATES:
        chance -= getattr(faults, fate)
        if chance < 0:
            return fate
    return "commit"
