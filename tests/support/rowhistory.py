"""Random transactions that a server with unique keys accepts, and the resulting rows, for tests of mode ordered."""

from __future__ import annotations

import random
from collections.abc import Sequence

from support.tabledefs import col, key, primary, table

from binlake.changes.net import RowEvent
from binlake.changes.net.net import Op
from binlake.changes.ordered import ChangeKeys, OrderedChange, OrderedPlan, PlanOptions
from binlake.changes.ordered.forms import RowForms
from binlake.rows.schema import TableDef
from binlake.statements import StatementBatch

KEYED = table("t", col("id"), col("u"), col("v"), keys=(primary("id"), key("u", "u"), key("uv", "v", "u")))
KEYLESS = table("log", col("line"), col("n"))
Row = tuple[int | None, ...]


class History:
    """Random transactions that a server with these unique keys accepts, and the resulting rows."""

    def __init__(self, seed: int, transactions: int) -> None:
        self.random = random.Random(seed)
        self.rows: dict[int, Row] = {}
        self.lines: list[Row] = []
        self.events: list[tuple[TableDef, RowEvent]] = []
        for commit_ts in range(1, transactions + 1):
            for seq in range(self.random.randint(1, 4)):
                self._step(commit_ts, seq)

    def _step(self, commit_ts: int, seq: int) -> None:
        if self.random.random() < 0.15:
            self._line(commit_ts, seq)
            return
        before = self.rows.get(self.random.randint(0, 5))
        new: Row = (self.random.randint(0, 5), *(self.random.choice([None, 1, 2, 3, 4]) for _ in range(2)))
        after = None if before is not None and self.random.random() < 0.3 else new
        others = [row for row in self.rows.values() if row != before]
        if after is not None and any(_collide(after, other) for other in others):
            return
        if before is not None:
            del self.rows[before[0]]  # type: ignore[arg-type]
        if after is not None:
            self.rows[after[0]] = after  # type: ignore[index]
        self._log(KEYED, commit_ts, seq, before, after)

    def _line(self, commit_ts: int, seq: int) -> None:
        before = self.random.choice(self.lines) if self.lines and self.random.random() < 0.6 else None
        after = None if before and self.random.random() < 0.5 else (self.random.randint(0, 1), None)
        if before:
            self.lines.remove(before)
        if after:
            self.lines.append(after)
        self._log(KEYLESS, commit_ts, seq, before, after)

    def _log(self, definition: TableDef, commit_ts: int, seq: int, before: Row | None, after: Row | None) -> None:
        names = [column.name for column in definition.columns]
        images = [
            None if row is None else {n: None if v is None else str(v) for n, v in zip(names, row, strict=True)}
            for row in (before, after)
        ]
        op: Op = "insert" if before is None else "delete" if after is None else "update"
        self.events.append((definition, RowEvent(commit_ts, 0, seq, op, *images)))


def _collide(one: Row, other: Row) -> bool:
    return one[0] == other[0] or (one[1] is not None and one[1] == other[1])


def plan(events: Sequence[tuple[TableDef, RowEvent]], options: PlanOptions, safe: bool = False) -> list[StatementBatch]:
    forms = {id(d): (RowForms(d, "mariadb"), ChangeKeys(d, "mariadb")) for d, _ in events}
    made = OrderedPlan(0, options)
    found: list[StatementBatch] = []
    for definition, event in events:
        writes, keys = forms[id(definition)]
        found.extend(made.add(OrderedChange(writes, event, keys.list_keys(event), safe)))
    return [*found, *made.flush()]
