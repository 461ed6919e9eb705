"""The tables of a workload with their rows, and the DDL that changes them, in the form of TiDB's jobs.

They are the state that a consumer must reach in the end. The rows of a table are divided among the writers: no other
writer changes them, so that the end state depends on the seed alone, not on which writer is faster. Definitions change
only while all writers pause: a real TiDB makes them wait, too, by its metadata lock.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from random import Random

from binlake.rows.codec import MutationBuilder
from binlake.rows.schema import Action, DbInfo, TableDef
from binlake.rows.schema import mysqltypes as t
from binlake.rows.schema.forms import Json, build_database_json, build_index_json, build_job_json, build_table_json
from binlake.rows.schema.job import DELETE_ONLY, PUBLIC
from binlake.testkit.workload.spec import SIZED, Col, Spec, Value, build_column_json, create_sql, require_kind

Row = dict[str, str | None]
ID = "id"
_MOST_COLUMNS = 24
_FIRST_ID = 102
_DROPS = frozenset({Action.DROP_TABLE, Action.DROP_COLUMN, Action.DROP_INDEX})


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


@dataclass(frozen=True)
class WorkloadDdl:
    """An executed statement; `states`: the schema states at which TiDB writes a binlog, the last one is final.

    `job(start_ts, finished_ts)` returns its entry in the history.
    """

    action: Action
    query: str
    job_id: int
    states: tuple[int, ...]
    job: Callable[[int, int], Json]


class WorkloadCatalog:
    """Not thread-safe. `tables` in order of creation; `version`: the schema version that transactions carry now."""

    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        self._random = Random(f"{spec.seed}/ddl")
        self._ids = itertools.count(_FIRST_ID)
        self._names = itertools.count(1)
        self._turn = 0
        self.version = 0
        self.tables: list[WorkloadTable] = []

    def create_initial_tables(self) -> Iterator[WorkloadDdl]:
        """CREATE DATABASE and the initial tables."""
        info = build_database_json(next(self._ids), self._spec.db)
        self._db = DbInfo.from_json(info)
        query = f"CREATE DATABASE `{self._spec.db}`;"
        yield self._finish(Action.CREATE_SCHEMA, query, (0, ""), db_info=info)
        for number in range(self._spec.tables):
            yield self._create_table(keyed=number < self._spec.tables - self._spec.keyless)

    def execute_next(self) -> WorkloadDdl | None:
        """Execute the next kind of DDL on a random table; None when no table allows that kind now."""
        kind = self._spec.ddl[self._turn % len(self._spec.ddl)]
        self._turn += 1
        table = self._random.choice(self.tables)
        return self._KINDS[kind](self, table)

    def _add_column(self, table: WorkloadTable) -> WorkloadDdl | None:
        if len(table.columns) >= _MOST_COLUMNS:
            return None
        word = self._random.choice(self._spec.columns)
        number = table.next_column
        table.next_column += 1
        col, value = require_kind(word)(f"c{number}_{word}", 16)
        if word in ("int", "bigint"):
            col = replace(col, default=str(self._random.randint(0, 1000)))
            table.origin[col.name] = col.default or ""
        table.columns.append((number, col))
        table.fresh[col.name] = value
        for part in table.parts:
            part.rows = {row_id: {**row, col.name: col.default} for row_id, row in part.rows.items()}
        return self._alter(Action.ADD_COLUMN, table, f"ADD COLUMN {col.sql}")

    def _drop_column(self, table: WorkloadTable) -> WorkloadDdl | None:
        indexed = {column for _, _, column in table.indexes}
        names = [name for name in table.fresh if name not in indexed]
        if len(table.fresh) < 2 or not names:
            return None
        name = self._random.choice(names)
        table.columns = [(number, col) for number, col in table.columns if col.name != name]
        del table.fresh[name]
        for part in table.parts:
            part.rows = {row_id: {n: v for n, v in row.items() if n != name} for row_id, row in part.rows.items()}
        return self._alter(Action.DROP_COLUMN, table, f"DROP COLUMN `{name}`")

    def _modify_column(self, table: WorkloadTable) -> WorkloadDdl | None:
        wide = [n for n, (_, col) in enumerate(table.columns) if col.tp == t.VARCHAR and col.flen < 8000]
        if not wide:
            return None
        at = self._random.choice(wide)
        number, col = table.columns[at]
        table.columns[at] = (number, replace(col, flen=col.flen + 16))
        return self._alter(Action.MODIFY_COLUMN, table, f"MODIFY COLUMN {table.columns[at][1].sql}")

    def _add_index(self, table: WorkloadTable) -> WorkloadDdl | None:
        plain = [col.name for _, col in table.columns if col.tp in t.INTEGERS and col.name != ID]
        if not plain or len(table.indexes) > 8:
            return None
        column = self._random.choice(plain)
        number = 1 + max((number for number, _, _ in table.indexes), default=0)
        table.indexes.append((number, f"k{number}_{column}", column))
        return self._alter(Action.ADD_INDEX, table, f"ADD INDEX `{table.indexes[-1][1]}`(`{column}`)")

    def _drop_index(self, table: WorkloadTable) -> WorkloadDdl | None:
        if not table.indexes:
            return None
        _, name, _ = table.indexes.pop()
        return self._alter(Action.DROP_INDEX, table, f"DROP INDEX `{name}`")

    def _truncate(self, table: WorkloadTable) -> WorkloadDdl:
        old = table.table_id
        table.table_id = next(self._ids)
        for part in table.parts:
            part.clear()
        table.rebuild(self._db)
        return self._finish(
            Action.TRUNCATE_TABLE, f"TRUNCATE TABLE `{table.name}`;", (old, table.name), table.build_info()
        )

    def _rename_table(self, table: WorkloadTable) -> WorkloadDdl:
        old, table.name = table.name, f"t{next(self._names)}"
        table.rebuild(self._db)
        query = f"RENAME TABLE `{old}` TO `{table.name}`;"
        return self._finish(Action.RENAME_TABLE, query, (table.table_id, old), table.build_info())

    def _drop_table(self, table: WorkloadTable) -> WorkloadDdl | None:
        if len(self.tables) <= self._spec.tables:
            return None
        self.tables.remove(table)
        query = f"DROP TABLE `{self._spec.db}`.`{table.name}`;"
        return self._finish(Action.DROP_TABLE, query, (table.table_id, table.name), table.build_info())

    def _add_table(self, table: WorkloadTable) -> WorkloadDdl | None:
        if len(self.tables) >= 2 * self._spec.tables:
            return None
        return self._create_table(keyed=table.keyed)

    def _create_table(self, *, keyed: bool) -> WorkloadDdl:
        table = build_table(self._spec, next(self._ids), f"t{next(self._names)}", keyed=keyed)
        table.rebuild(self._db)
        self.tables.append(table)
        query = create_sql(table.name, [col for _, col in table.columns], table.render_keys()) + ";"
        return self._finish(Action.CREATE_TABLE, query, (table.table_id, table.name), table.build_info())

    def _alter(self, action: Action, table: WorkloadTable, clause: str) -> WorkloadDdl:
        table.rebuild(self._db)
        return self._finish(
            action, f"ALTER TABLE `{table.name}` {clause};", (table.table_id, table.name), table.build_info()
        )

    def _finish(
        self,
        action: Action,
        query: str,
        table: tuple[int, str],
        info: Json | None = None,
        *,
        db_info: Json | None = None,
    ) -> WorkloadDdl:
        self.version += 1
        version, job_id, schema = self.version, next(self._ids), (self._db.id, self._spec.db)
        final = 0 if action in _DROPS else PUBLIC
        # TiDB writes a dropped column twice (tidb-binlog 1.11).
        states = (DELETE_ONLY, final) if action is Action.DROP_COLUMN else (final,)

        def build_job(start_ts: int, finished_ts: int) -> Json:
            return build_job_json(
                job_id, action, query, schema=schema, table=table, version=version, start_ts=start_ts,
                finished_ts=finished_ts, db_info=db_info, table_info=info,
            )  # fmt: skip

        return WorkloadDdl(action, query, job_id, states, build_job)

    _KINDS: dict[str, Callable[[WorkloadCatalog, WorkloadTable], WorkloadDdl | None]] = {  # noqa: RUF012 - a constant
        "add-column": _add_column,
        "drop-column": _drop_column,
        "modify-column": _modify_column,
        "add-index": _add_index,
        "drop-index": _drop_index,
        "truncate": _truncate,
        "rename-table": _rename_table,
        "drop-table": _drop_table,
        "create-table": _add_table,
    }
