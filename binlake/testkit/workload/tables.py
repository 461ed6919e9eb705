"""The tables of a workload and their rows: the state that a consumer must reach in the end.

The rows of a table are divided among the writers: no other writer changes them, so that the end state depends on the
seed alone, not on which writer is faster. Definitions change only while all writers pause.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random

from binlake.rows.codec import MutationBuilder
from binlake.rows.schema import DbInfo, TableDef
from binlake.rows.schema import mysqltypes as t
from binlake.rows.schema.forms import Json, build_index_json, build_table_json
from binlake.testkit.workload.definitions import Col, build_column_json
from binlake.testkit.workload.kinds import SIZED, Value, require_kind
from binlake.testkit.workload.spec import Spec

Row = dict[str, str | None]
ID = "id"


@dataclass
class WriterRows:
    """The rows of one writer by row id; `ids` in an order for random choice; `next`: the next id to assign."""

    next: int
    step: int
    rows: dict[int, Row] = field(default_factory=dict)
    ids: list[int] = field(default_factory=list)
    _place: dict[int, int] = field(default_factory=dict)

    def take_id(self) -> int:
        """A row id that was never used."""
        self.next += self.step
        return self.next - self.step

    def put(self, row_id: int, row: Row | None) -> None:
        """Insert, replace, or (if None) delete a row."""
        if row is not None:
            if row_id not in self.rows:
                self._place[row_id] = len(self.ids)
                self.ids.append(row_id)
            self.rows[row_id] = row
        elif self.rows.pop(row_id, None) is not None:
            place, last = self._place.pop(row_id), self.ids.pop()
            if last != row_id:
                self.ids[place] = last
                self._place[last] = place

    def clear(self) -> None:
        """Delete all rows; their ids are not used again."""
        self.rows, self.ids, self._place = {}, [], {}


@dataclass
class WorkloadTable:
    """One table. `columns` in order, including the key; `fresh`: the value generator of each column except the key."""

    table_id: int
    name: str
    columns: list[tuple[int, Col]]
    fresh: dict[str, Value]
    keyed: bool
    parts: list[WriterRows]
    indexes: list[tuple[int, str, str]] = field(default_factory=list)
    origin: dict[str, str] = field(default_factory=dict)
    next_column: int = 100
    definition: TableDef = field(init=False)

    def rebuild(self, db: DbInfo) -> None:
        """Update `definition` from the fields; called after each change of them."""
        self.definition = TableDef.from_json(self.build_info(), db)

    def build_info(self) -> Json:
        """The present TableInfo."""
        cols = [
            {
                **build_column_json(col, number, offset, primary=self.keyed and col.name == ID),
                "origin_default": self.origin.get(col.name),
            }
            for offset, (number, col) in enumerate(self.columns)
        ]
        offsets = {col.name: offset for offset, (_, col) in enumerate(self.columns)}
        indexes = [
            build_index_json(number, name, [(column, offsets[column])], unique=False, primary=False)
            for number, name, column in self.indexes
        ]
        return build_table_json(self.table_id, self.name, cols, indexes, pk_is_handle=self.keyed)

    def list_column_names(self) -> list[str]:
        """The names of the columns, in order."""
        return [col.name for _, col in self.columns]

    def render_keys(self) -> list[str]:
        """The key clauses of its CREATE TABLE."""
        primary = [f"PRIMARY KEY (`{ID}`) /*T![clustered_index] CLUSTERED */"] if self.keyed else []
        return primary + [f"KEY `{name}` (`{column}`)" for _, name, column in self.indexes]

    def build_row(self, row_id: int, random: Random) -> Row:
        """A row with fresh values."""
        row: Row = {name: value(random) for name, value in self.fresh.items()}
        return {ID: str(row_id), **row} if self.keyed else row

    def change_row(self, row: Row, random: Random) -> Row:
        """`row` with another value in one column."""
        name = random.choice(list(self.fresh))
        return {**row, name: self.fresh[name](random)}

    def iterate_rows(self) -> Iterator[Row]:
        """All rows by row id."""
        rows = {row_id: row for part in self.parts for row_id, row in part.rows.items()}
        return (rows[row_id] for row_id in sorted(rows))

    def build_builder(self) -> MutationBuilder:
        """Encodes row changes of this table with its present definition."""
        return MutationBuilder(self.definition)


def build_table(spec: Spec, table_id: int, name: str, *, keyed: bool) -> WorkloadTable:
    """An empty table with the columns of `spec`."""
    width = max(1, spec.row_bytes // max(1, sum(word in SIZED for word in spec.columns)))
    columns, fresh = [], dict[str, Value]()
    if keyed:
        columns.append((1, Col(ID, t.LONGLONG, 20, 0, not_null=True)))
    for number, word in enumerate(spec.columns, 2):
        col, value = require_kind(word)(f"c{number - 1}_{word}", width)
        columns.append((number, col))
        fresh[col.name] = value
    parts = [WriterRows(1 + writer, spec.writers) for writer in range(spec.writers)]
    return WorkloadTable(table_id, name, columns, fresh, keyed, parts)


def build_row_formatter(table: WorkloadTable) -> Callable[[Row], list[object]]:
    """A function that turns a row of `table` into a list of values in the form of a capture's state."""
    binary = {
        col.name for _, col in table.columns if col.tp == t.BIT or (col.tp in t.STRINGS and col.charset == "binary")
    }
    names = table.list_column_names()

    def format_row(row: Row) -> list[object]:
        return [{"hex": row[name]} if name in binary and row[name] is not None else row[name] for name in names]

    return format_row
