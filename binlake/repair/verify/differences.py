"""Finds the differences between rows of two sides: missing on the target, extra there, or different in some columns.

Rows are compared by the only definition of equality (docs/understand/equality.md). Rows with a key are matched by it,
whatever their chunk; rows without a key are counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from binlake.base.redaction import redact_key
from binlake.changes.net import encode_row_key
from binlake.repair.verify.texts import build_fold
from binlake.rows.schema import TableDef

Row = Mapping[str, str | None]
"""Column name -> canonical text."""

Kind = Literal["missing", "extra", "different"]
_SHOWN = 60


@dataclass(frozen=True)
class Difference:
    """A difference at one key (JSON array of its texts) of `db`.`table`: the expected row and the one found.

    `columns`: the differing ones; `copies`: how many equal rows of a table without a key are missing or extra.
    """

    db: str
    table: str
    key: str
    kind: Kind
    columns: tuple[str, ...]
    expected: Row | None
    found: Row | None
    copies: int = 1

    def __str__(self) -> str:
        subject = f"{self.db}.{self.table} {self.key}"
        if self.kind != "different" or self.expected is None or self.found is None:
            count = f" ({self.copies} rows)" if self.copies > 1 else ""
            return f"{subject}: {'missing' if self.kind == 'missing' else 'only on the target'}{count}"
        values = (f"{c}: {_shorten(self.found[c])} instead of {_shorten(self.expected[c])}" for c in self.columns)
        return f"{subject}: {', '.join(values)}"

    def format_without_values(self) -> str:
        """The difference as text for a log."""
        subject, columns = f"{self.db}.{self.table} {redact_key(self.key)}", ", ".join(self.columns)
        what = {"missing": "missing", "different": f"differs in {columns}"}.get(self.kind, "only on the target")
        return f"{subject}: {what}" + (f" ({self.copies} rows)" if self.copies > 1 else "")

    def to_dict(self) -> dict[str, Any]:
        """For JSON; the rows' values are in the fix file."""
        return {"db": self.db, "table": self.table, "key": self.key, "kind": self.kind,
                "columns": list(self.columns), "copies": self.copies}  # fmt: skip


@dataclass
class RowsOfTable:
    """Rows of both sides that may differ; `list_differences` finds those that do."""

    table: TableDef
    expected: list[Row] = field(default_factory=list)
    found: list[Row] = field(default_factory=list)

    def list_differences(self) -> list[Difference]:
        """All differences, sorted by key."""
        keyed = self.table.find_identity().kind != "row"
        return sorted(
            self._compare_by_key() if keyed else self._compare_by_count(),
            key=lambda difference: (difference.key, difference.kind),
        )

    def _compare_by_key(self) -> Iterator[Difference]:
        expected, actual = self._group_by_key(self.expected), self._group_by_key(self.found)
        for key in expected.keys() | actual.keys():
            mine, theirs = expected.get(key, []), actual.get(key, [])
            if not theirs:
                yield self._build_difference(key, "missing", (), mine[0], None)
            elif not mine:
                yield self._build_difference(key, "extra", (), None, theirs[0], len(theirs))
            elif columns := self._find_differing_columns(mine[0], theirs):
                yield self._build_difference(key, "different", columns, mine[0], theirs[0])

    def _find_differing_columns(self, mine: Row, theirs: Sequence[Row]) -> tuple[str, ...]:
        return tuple(name for name, fold in self._folds if any(fold(row[name]) != fold(mine[name]) for row in theirs))

    def _compare_by_count(self) -> Iterator[Difference]:
        folds = self._folds
        counts: Counter[tuple[str | None, ...]] = Counter()
        images: dict[tuple[str | None, ...], Row] = {}
        for rows, step in ((self.found, -1), (self.expected, 1)):
            for row in rows:
                value = tuple(fold(row[name]) for name, fold in folds)
                counts[value] += step
                # An extra row is deleted with the target's values; a missing row is written with the expected ones.
                images[value] = row if step > 0 else images.get(value, row)
        actual_rows = {tuple(fold(row[name]) for name, fold in folds): row for row in self.found}
        for value, count in counts.items():
            key = encode_row_key(images[value], self.table.find_identity().columns)
            if count > 0:
                yield self._build_difference(key, "missing", (), images[value], None, count)
            elif count < 0:
                yield self._build_difference(key, "extra", (), None, actual_rows[value], -count)

    @cached_property
    def _folds(self) -> list[tuple[str, Callable[[str | None], str | None]]]:
        return [(column.name, build_fold(column)) for column in self.table.row_columns]

    def _group_by_key(self, rows: Iterable[Row]) -> dict[str, list[Row]]:
        by_key: dict[str, list[Row]] = {}
        for row in rows:
            by_key.setdefault(encode_row_key(row, self.table.find_identity().columns), []).append(row)
        return by_key

    def _build_difference(
        self, key: str, kind: Kind, columns: tuple[str, ...], expected: Row | None, found: Row | None, copies: int = 1
    ) -> Difference:
        return Difference(self.table.db, self.table.name, key, kind, columns, expected, found, copies)


def _shorten(value: str | None) -> str:
    if value is None:
        return "NULL"
    return repr(value if len(value) <= _SHOWN else f"{value[: _SHOWN - 3]}...")
