"""A random source: tables, transactions and DDL that a real server accepted, their binlogs, and the rows at each
commit.

Every change first runs on a separate database (`src`); a change that the server refuses (a unique value twice, by its
own collation) does not happen. The rows are also recorded here, by commit_ts, so that a target can be compared with the
source as it was at any checkpoint. In `src` each table has an additional column, a primary key `_rid`, which
distinguishes equal rows of a table without a key; the table's own primary key is a unique key there.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pymysql
from modelends import window_ends
from modeltable import (
    COLLATIONS,
    COLUMNS,
    DB,
    KEYS,
    SRC,
    VALUES,
    Field,
    Line,
    Row,
    State,
    Table,
    canonical,
    changed,
    collated,
    collation_names,
    key_parts,
    random_columns,
    random_key,
    shown_rows,
)
from pymysql.connections import Connection

from binlake.common.sql import Dialect
from binlake.rows.codec import MutationBuilder, encode_prewrite_value
from binlake.rows.codec.encode import RowEncoder
from binlake.rows.schema import Action, DbInfo, DdlJob, WindowDdl
from binlake.rows.schema.forms import build_database_json, build_job_json
from binlake.wire import binlog_pb2 as pb
from binlake.wire import build

_DUPLICATE = 1062


class Source:
    """`random` decides everything; `bytewise`: the server compares by bytes, whatever the definitions say."""

    def __init__(
        self, connection: Connection[Any], random: Random, *, bytewise: bool = False, dialect: Dialect = "mariadb"
    ) -> None:
        self.random = random
        self.rows: list[tuple[int, int, bytes, int]] = []
        self.ddls: list[WindowDdl] = []
        self.jobs: list[tuple[int, DdlJob]] = []
        self.states: list[tuple[int, State]] = [(0, {})]
        self.connection_id = int(connection.thread_id())
        self._cursor = connection.cursor()
        self._collations = collation_names(dialect, bytewise)
        self._ticks, self._ids, self._rids = (itertools.count(n) for n in (1_795_000_000_000, 100, 1))
        self._tables: dict[str, Table] = {}
        self._version = 0
        self._info = DbInfo.from_json(build_database_json(next(self._ids), DB))
        self._ddl(Action.CREATE_SCHEMA, f"CREATE DATABASE `{DB}`", None, db_info=dict(self._info.raw))
        self._cursor.execute(f"USE `{SRC}`")

    # -- what a test calls -----------------------------------------------------------------------------------------

    def create(self, name: str, keys: int, *, kinds: Sequence[str] = KEYS) -> None:
        """CREATE TABLE with `keys` unique keys (0 to 3), composite ones, prefixes and nullable columns among them."""
        numbers = itertools.count(1)
        fields = [self._field(next(numbers), self.random.choice(kinds)) for _ in range(max(keys, 1))]
        fields += [
            self._field(next(numbers), self.random.choice(tuple(VALUES))) for _ in range(self.random.randint(1, 2))
        ]
        table = Table(name, next(self._ids), fields, (), [])
        if keys and self.random.random() < 0.7:
            table.primary = random_columns(self.random, table, fields[0].col.name)
        while len(table.uniques) + bool(table.primary) < keys:
            table.uniques.append(
                random_key(self.random, table, fields[len(table.uniques) + bool(table.primary)].col.name)
            )
        table.forbid_null(table.primary)
        table.define(self._info)
        self._run(table.create_sql(upstream=True))
        self._tables[name] = table
        self._ddl(Action.CREATE_TABLE, table.create_sql(upstream=False), table)

    def transaction(self) -> None:
        """A random transaction over the tables, committed."""
        start_ts = self._clock()
        builders: dict[str, MutationBuilder] = {}
        for _ in range(self.random.randint(1, 4)):
            table = self.random.choice(list(self._tables.values()))
            builder = builders.setdefault(table.name, MutationBuilder(table.definition))
            self.random.choice(_STEPS)(self, table, builder)
        self._commit(start_ts, [b.message for b in builders.values() if b.message.sequence], self._version)

    def alter(self) -> None:
        """A random DDL on one of the tables, if the server accepts it."""
        table = self.random.choice(list(self._tables.values()))
        self.random.choice(_DDL)(self, table)

    def at(self, commit_ts: int) -> State:
        """The rows after the last commit at or before `commit_ts`."""
        return next(state for ts, state in reversed(self.states) if ts <= commit_ts)

    @property
    def ends(self) -> list[int]:
        """The positions at which a window may end: at each commit, and between commits; ascending."""
        return window_ends((row[0] for row in self.rows), self.jobs, (ts for ts, _ in self.states[1:]))

    def on_server(self) -> State:
        """The rows that the server itself has, to check this model."""
        return {name: shown_rows(self._cursor, SRC, table.definition) for name, table in self._tables.items()}

    # -- rows ------------------------------------------------------------------------------------------------------

    def _row(self, table: Table) -> Row:
        return {one.col.name: self._value(one) for one in table.fields}

    def _value(self, one: Field) -> str | None:
        if not one.col.not_null and self.random.random() < 0.25:
            return None
        return self.random.choice(VALUES[one.kind])

    def _line(self, table: Table) -> Line | None:
        return self.random.choice(table.lines) if table.lines else None

    def insert(self, table: Table, builder: MutationBuilder) -> None:
        """Insert a row, at times one that exists already (a table without a key accepts it)."""
        line = self._line(table)
        row = dict(line.row) if line and self.random.random() < 0.3 else self._row(table)
        self._insert(table, builder, row)

    def update(self, table: Table, builder: MutationBuilder) -> None:
        """Change some columns of a row, possibly keys."""
        line = self._line(table)
        if line is not None:
            names = self.random.sample(table.names, self.random.randint(1, len(table.names)))
            new = self._row(table)
            self._update(table, builder, line, {name: new[name] for name in names})

    def touch(self, table: Table, builder: MutationBuilder) -> None:
        """Change columns of no key."""
        line, free = self._line(table), [name for name in table.names if name not in table.keyed]
        if line is not None and free:
            new = self._row(table)
            self._update(table, builder, line, {name: new[name] for name in free})

    def delete(self, table: Table, builder: MutationBuilder) -> None:
        """Delete a row."""
        line = self._line(table)
        if line is not None:
            self._delete(table, builder, line)

    def again(self, table: Table, builder: MutationBuilder) -> None:
        """DELETE, then INSERT of a row with the same or nearly the same values."""
        line = self._line(table)
        if line is not None:
            row = {**line.row, **({} if self.random.random() < 0.3 else self._respell_text(table, line.row))}
            self._delete(table, builder, line)
            self._insert(table, builder, row)

    def rotate(self, table: Table, builder: MutationBuilder) -> None:
        """A swap, a chain or a cycle: values of one key move from row to row, through a free value."""
        keys = [*([table.primary] if table.primary else []), *(key.columns for key in table.uniques)]
        if not keys or len(table.lines) < 2:
            return
        names = self.random.choice(keys)
        lines = self.random.sample(table.lines, self.random.randint(2, min(4, len(table.lines))))
        values = [{name: line.row[name] for name in names} for line in lines]
        free = self._row(table)
        if not self._update(table, builder, lines[0], {name: free[name] for name in names}):
            return
        for line, value in zip(lines[1:], values[:-1], strict=True):
            self._update(table, builder, line, value)
        if self.random.random() < 0.7:
            self._update(table, builder, lines[0], values[-1])

    def respell(self, table: Table, builder: MutationBuilder) -> None:
        """Replace a text by one that its collation may treat as equal."""
        line = self._line(table)
        if line is not None:
            self._update(table, builder, line, self._respell_text(table, line.row))

    def _respell_text(self, table: Table, row: Row) -> Row:
        texts = [one.col.name for one in table.fields if one.kind == "text" and row[one.col.name] is not None]
        return {name: self.random.choice((str(row[name]).swapcase(), f"{row[name]} ".lower()))[:8] for name in texts}

    def _insert(self, table: Table, builder: MutationBuilder, row: Row) -> None:
        rid = next(self._rids)
        names = ", ".join(f"`{name}`" for name in row)
        places = ", ".join(["%s"] * (len(row) + 1))
        if self._accepts(
            f"INSERT INTO `{table.name}` (_rid, {names}) VALUES ({places})", (rid, *self._args(table, row))
        ):
            table.lines.append(Line(rid, row, table.definition))
            builder.insert(row, rid)

    def _update(self, table: Table, builder: MutationBuilder, line: Line, new: Row) -> bool:
        before, after = dict(line.row), {**line.row, **new}
        if before == after:
            return False
        sets = ", ".join(f"`{name}` = %s" for name in after)
        if not self._accepts(
            f"UPDATE `{table.name}` SET {sets} WHERE _rid = %s", (*self._args(table, after), line.rid)
        ):
            return False
        line.row, line.definition = after, table.definition
        builder.update(before, after, line.rid)
        return True

    def _delete(self, table: Table, builder: MutationBuilder, line: Line) -> None:
        self._cursor.execute(f"DELETE FROM `{table.name}` WHERE _rid = %s", (line.rid,))
        table.lines.remove(line)
        # A row is deleted as it was written: with the definition of that time (tidb-binlog 5.5).
        builder.message.deleted_rows.append(RowEncoder(line.definition).delete(line.row, line.rid))
        builder.message.sequence.append(pb.DeleteRow)

    def _args(self, table: Table, row: Row) -> list[object]:
        kinds = {one.col.name: one.kind for one in table.fields}
        return [
            bytes.fromhex(text) if kinds[name] == "bytes" and text is not None else text for name, text in row.items()
        ]

    def _accepts(self, sql: str, arguments: Sequence[object] = ()) -> bool:
        try:
            self._cursor.execute(sql, tuple(arguments))
        except pymysql.err.IntegrityError as error:
            if error.args[0] != _DUPLICATE:
                raise
            return False
        return True

    def _commit(self, start_ts: int, mutations: list[pb.TableMutation], version: int) -> int:
        if not mutations:
            return 0
        commit_ts = self._clock()
        binlog = build.build_prewrite(start_ts, b"k%d" % start_ts, encode_prewrite_value(version, mutations))
        self.rows.append((commit_ts, start_ts, binlog.SerializeToString(), version))
        self._record_state(commit_ts)
        return commit_ts

    def _record_state(self, commit_ts: int) -> None:
        state: State = {}
        for table in self._tables.values():
            rows = [tuple(line.row[name] for name in table.names) for line in table.lines]
            state[table.name] = sorted(rows, key=repr)
        self.states.append((commit_ts, state))

    # -- DDL -------------------------------------------------------------------------------------------------------

    def add_column(self, table: Table) -> None:
        """ADD COLUMN; at times, rows of the new definition commit before it does."""
        kind = self.random.choice(tuple(VALUES))
        column = self._field(max(one.id for one in table.fields) + 1, kind)
        default = None
        if column.col.not_null:
            default = "a" if kind == "bytes" else self.random.choice([v for v in VALUES[kind] if "'" not in v])
        new = Field(column.id, kind, changed(column.col, default=default), canonical(kind, default))
        table.fields.append(new)
        sql = f"ALTER TABLE `{table.name}` ADD COLUMN {new.col.sql}{collated(new.col)}"
        self._run(sql)
        for line in table.lines:
            line.row = {**line.row, new.col.name: new.origin}
        table.define(self._info)
        ready = self._clock()
        early = [self._write_early(table) for _ in range(self.random.choice((0, 0, 1, 2)))]
        if not any(early):
            self._ddl(Action.ADD_COLUMN, sql, table)
            return
        # Only the columns of an ALTER with several clauses are public before its binlog.
        self._ddl(Action.MULTI_SCHEMA_CHANGE, sql, table, ready=ready)

    def _write_early(self, table: Table) -> int:
        """A transaction of a writer that sees the definition of a DDL that is not committed yet."""
        start_ts, builder = self._clock(), MutationBuilder(table.definition)
        self.random.choice((Source.insert, Source.update))(self, table, builder)
        return self._commit(start_ts, [builder.message] if builder.message.sequence else [], self._version + 1)

    def drop_column(self, table: Table) -> None:
        """DROP COLUMN of no key."""
        free = [one for one in table.fields if one.col.name not in table.keyed]
        if len(free) < 2:
            return
        dropped = self.random.choice(free)
        table.fields.remove(dropped)
        for line in table.lines:
            line.row = {name: text for name, text in line.row.items() if name != dropped.col.name}
        self._altered(table, Action.DROP_COLUMN, f"ALTER TABLE `{table.name}` DROP COLUMN `{dropped.col.name}`")

    def add_unique(self, table: Table) -> None:
        """ADD UNIQUE, if no two rows prevent it."""
        if len(table.uniques) + bool(table.primary) >= 3:
            return
        key = random_key(
            self.random,
            table,
            self.random.choice([one.col.name for one in table.fields if one.kind != "float"] or [""]),
        )
        if not key.columns:
            return
        sql = f"ALTER TABLE `{table.name}` ADD UNIQUE KEY `{key.name}` ({key_parts(key)})"
        if self._accepts(sql):
            table.uniques.append(key)
            table.define(self._info)
            self._ddl(Action.ADD_INDEX, sql, table)

    def drop_unique(self, table: Table) -> None:
        """DROP INDEX of a unique key."""
        if table.uniques:
            key = self.random.choice(table.uniques)
            table.uniques.remove(key)
            self._altered(table, Action.DROP_INDEX, f"ALTER TABLE `{table.name}` DROP INDEX `{key.name}`")

    def widen(self, table: Table) -> None:
        """MODIFY COLUMN to a type that holds more."""
        found = [one for one in table.fields if one.kind == "text" and one.col.name not in table.keyed]
        if found:
            old = self.random.choice(found)
            new = Field(old.id, old.kind, changed(old.col, flen=old.col.flen + 8), old.origin)
            table.fields[table.fields.index(old)] = new
            sql = f"ALTER TABLE `{table.name}` MODIFY COLUMN {new.col.sql}{collated(new.col)}"
            self._altered(table, Action.MODIFY_COLUMN, sql)

    def truncate(self, table: Table) -> None:
        """TRUNCATE: a new table id, no rows."""
        old, table.id = table.id, next(self._ids)
        table.lines.clear()
        self._run(f"TRUNCATE TABLE `{table.name}`")
        table.define(self._info)
        self._ddl(Action.TRUNCATE_TABLE, f"TRUNCATE TABLE `{table.name}`", table, table_id=old)

    def _altered(self, table: Table, action: Action, sql: str) -> None:
        self._run(sql)
        table.define(self._info)
        self._ddl(action, sql, table)

    def _ddl(
        self, action: Action, query: str, table: Table | None, *, db_info: Any = None, table_id: int | None = None,
        ready: int = 0,
    ) -> int:  # fmt: skip
        self._version += 1
        start_ts, commit_ts, job_id = self._clock(), self._clock(), next(self._ids)
        info = dict(table.definition.raw) if table is not None else None
        own = (table_id or (table.id if table is not None else 0), table.name if table is not None else "")
        raw = build_job_json(
            job_id, action, query, schema=(self._info.id, DB), table=own, version=self._version, start_ts=start_ts,
            finished_ts=commit_ts + 1, db_info=db_info, table_info=info,
        )  # fmt: skip
        raw["real_start_ts"] = ready
        self.ddls.append(WindowDdl(commit_ts, start_ts, job_id, 5, f"{query};"))
        self.jobs.append((commit_ts, DdlJob.from_dict(raw)))
        self._record_state(commit_ts)
        return commit_ts

    def _clock(self) -> int:
        return next(self._ticks) << 18

    # -- definitions -----------------------------------------------------------------------------------------------

    def _field(self, number: int, kind: str) -> Field:
        col = COLUMNS[kind](f"c{number}")
        if kind == "text":
            col = changed(col, collate=self.random.choice(COLLATIONS))
        return Field(number, kind, changed(col, not_null=self.random.random() < 0.5))

    def _run(self, sql: str) -> None:
        self._cursor.execute(self._own(sql))

    def _own(self, sql: str) -> str:
        """The text with the collations of the server that acts as the source."""
        for name, own in self._collations.items():
            sql = sql.replace(name, own)
        return sql


_STEPS: tuple[Callable[[Source, Table, MutationBuilder], None], ...] = (
    Source.insert, Source.insert, Source.insert, Source.update, Source.update, Source.touch, Source.delete,
    Source.again, Source.rotate, Source.respell,
)  # fmt: skip
_DDL: tuple[Callable[[Source, Table], None], ...] = (
    Source.add_column, Source.add_column, Source.drop_column, Source.add_unique, Source.add_unique,
    Source.drop_unique, Source.widen, Source.truncate,
)  # fmt: skip
