"""A source to write upstream's daily tests with: SQL in, binlogs and a model of the rows out, compared at the target.

DDL is given as TiDB's text. It runs on a scratch database of the same server, whose definition becomes the job's
TableInfo, and then, through the pipeline's own functions, on the target (`deploy.local.direct`). Rows are stored by
column id, as in TiDB, so that a change built with an older or a newer definition means the same as upstream.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from support.mariadb import MariaDb, dialect_of
from support.tableinfo import table_info_of
from support.windows import target_of

from binlake.rows.codec import MutationBuilder, encode_prewrite_value
from binlake.rows.codec.encode import derive_filled_text
from binlake.rows.schema import Action, ColumnInfo, DbInfo, DdlJob, TableDef, WindowDdl
from binlake.rows.schema import mysqltypes as t
from binlake.rows.schema.forms import build_database_json, build_job_json
from binlake.statements.literal import quote_name, quote_qualified_name
from binlake.target.session.session import TargetSession
from binlake.wire import build
from deploy.local.commitlog import CommitLog
from deploy.local.direct import DirectReplay

DB = "daily"
Row = dict[str, str | None]
Stored = dict[int, str | None]
"""Column id -> text."""


@dataclass
class Table:
    """An upstream table: its definition, and its rows by column id."""

    definition: TableDef
    rows: list[Stored] = field(default_factory=list)


@dataclass
class Change:
    """A row change as it was built: its definition, and the images."""

    op: str
    definition: TableDef
    before: Row | None
    after: Row | None


@dataclass
class Txn:
    """A transaction whose definitions are those of the time it was built, whenever it commits."""

    source: Daily
    start_ts: int
    changes: list[Change] = field(default_factory=list)

    def insert(self, table: str, _as: TableDef | None = None, **row: object) -> Txn:
        """INSERT; missing columns get their defaults. `_as`: the definition that the writer sees."""
        return self._add("insert", table, None, row, _as)

    def delete(self, table: str, _as: TableDef | None = None, **row: object) -> Txn:
        """DELETE of the whole row."""
        return self._add("delete", table, row, None, _as)

    def update(self, table: str, before: Mapping[str, object], _as: TableDef | None = None, **after: object) -> Txn:
        """UPDATE of the row `before`."""
        return self._add("update", table, before, {**before, **after}, _as)

    def commit(self) -> int:
        """Log P and C; return the commit_ts."""
        return self.source.log_transaction(self)

    def _add(
        self, op: str, table: str, before: Mapping[str, object] | None, after: Mapping[str, object] | None,
        seen: TableDef | None,
    ) -> Txn:  # fmt: skip
        definition = seen or self.source.table(table)
        self.changes.append(Change(op, definition, _image(definition, before), _image(definition, after)))
        return self


@dataclass
class Pending:
    """A DDL that has reached its last schema state but is not logged yet: writers already see `definition`."""

    source: Daily
    action: Action
    query: str
    table_id: int
    definition: TableDef | None
    effect: Callable[[], None]
    names: tuple[str, str]
    db_info: dict[str, Any] | None = None
    many: tuple[dict[str, Any], ...] = ()
    began: int = 0

    def commit(self) -> int:
        """Log the DDL; return its commit_ts."""
        return self.source.log_ddl(self)


class Daily:
    """One source and one target database, both `daily`, on `server`."""

    def __init__(self, server: MariaDb) -> None:
        server.wipe()
        self._ticks = itertools.count(1_795_000_000_000)
        self._ids = itertools.count(100)
        self.version = 0
        self.tables: dict[str, Table] = {}
        self.log = CommitLog([], [], [])
        target = target_of(server)
        self.upstream, self.session = TargetSession(target), TargetSession(target)
        self.replay = DirectReplay(self.log, self.session, dialect=server.name)
        self._db = DbInfo.from_json(build_database_json(next(self._ids), DB))
        self._database(Action.CREATE_SCHEMA, f"CREATE DATABASE `{DB}`")
        self.upstream.execute("CREATE DATABASE scratch CHARACTER SET utf8mb4 COLLATE utf8mb4_bin")
        self.upstream.execute("USE scratch")

    def close(self) -> None:
        """End the connections."""
        self.upstream.close()
        self.session.close()

    def clock(self) -> int:
        """The next timestamp: one millisecond per call."""
        return next(self._ticks) << 18

    def table(self, name: str) -> TableDef:
        """The current definition."""
        return self.tables[name].definition

    def begin(self) -> Txn:
        """A transaction with the current definitions."""
        return Txn(self, self.clock())

    def create(self, name: str, columns: str, *, clustered: bool = True, options: str = "") -> int:
        """CREATE TABLE; `clustered`: how TiDB would store its primary key."""
        query = f"CREATE TABLE `{name}` ({columns}){options}"
        self.upstream.execute(query)
        definition = self._read(name, next(self._ids), None, clustered)

        def effect() -> None:
            self.tables[name] = Table(definition)

        return self._pending(Action.CREATE_TABLE, query, name, definition, effect).commit()

    def alter(self, name: str, what: str, action: Action) -> int:
        """ALTER TABLE; return its commit_ts."""
        return self.altering(name, what, action).commit()

    def altering(self, name: str, what: str, action: Action) -> Pending:
        """Start an ALTER TABLE, up to its last schema state."""
        old = self.table(name)
        query = f"ALTER TABLE `{name}` {what}"
        self.upstream.execute(query)
        new = self._read(name, old.id, old, old.pk_is_handle or old.is_common_handle)

        def effect() -> None:
            self.tables[name] = Table(new, [_move_row(row, new) for row in self.tables[name].rows])

        return self._pending(action, query, name, new, effect)

    def truncate(self, name: str) -> int:
        """TRUNCATE TABLE, which assigns a new table id."""
        old = self.table(name)
        new = _with_id(old, next(self._ids), self._db)

        def effect() -> None:
            self.tables[name] = Table(new)

        pending = self._pending(Action.TRUNCATE_TABLE, f"TRUNCATE TABLE `{name}`", name, new, effect)
        pending.table_id = old.id
        return pending.commit()

    def drop(self, name: str, query: str = "") -> int:
        """DROP TABLE."""
        old = self.table(name)
        self.upstream.execute(f"DROP TABLE {name}")

        def effect() -> None:
            del self.tables[name]

        return self._pending(Action.DROP_TABLE, query or f"DROP TABLE `{name}`", name, old, effect).commit()

    def run(self, action: Action, query: str, name: str, definition: TableDef | None, **more: Any) -> int:
        """Any other DDL: `definition` is its TableInfo; `many`, `table_id`, `effect`, `state`."""
        state = more.pop("state", 6)
        pending = self._pending(action, query, name, definition, more.pop("effect", lambda: None))
        for key, value in more.items():
            setattr(pending, key, value)
        return self.log_ddl(pending, state)

    def drop_database(self) -> int:
        """DROP DATABASE with all its tables."""
        for name in list(self.tables):
            self.upstream.execute(f"DROP TABLE `{name}`")
        self.tables = {}
        return self._database(Action.DROP_SCHEMA, f"DROP DATABASE `{DB}`")

    def create_database(self) -> int:
        """CREATE DATABASE again, with a new id."""
        self._db = DbInfo.from_json(build_database_json(next(self._ids), DB))
        return self._database(Action.CREATE_SCHEMA, f"CREATE DATABASE `{DB}`")

    def alter_database(self, options: str, charset: str, collate: str) -> int:
        """ALTER DATABASE."""
        self._db = DbInfo.from_json({**self._db.raw, "charset": charset, "collate": collate})
        return self._database(Action.SCHEMA_CHARSET, f"ALTER DATABASE `{DB}` {options}")

    def half_step(self, pending: Pending) -> int:
        """Log the extra delete-only binlog that DROP COLUMN sends before its last one (tidb-binlog 1.11)."""
        commit_ts = self.clock()
        self.log.ddls.append(WindowDdl(commit_ts, commit_ts - 1, 1 << 40, 1, pending.query))
        return commit_ts

    def log_ddl(self, ddl: Pending, state: int = 6) -> int:
        """Log a DDL, whether it took effect (6) or was rolled back (3)."""
        self.version += 1
        start_ts, commit_ts, job_id = self.clock(), self.clock(), next(self._ids)
        info = dict(ddl.definition.raw) if ddl.definition is not None else None
        raw = build_job_json(
            job_id, ddl.action, ddl.query, schema=(self._db.id, ddl.names[0]), table=(ddl.table_id, ddl.names[1]),
            version=self.version, start_ts=start_ts, finished_ts=commit_ts + 1, db_info=ddl.db_info, table_info=info,
        )  # fmt: skip
        raw["state"] = state
        if ddl.began:
            raw["real_start_ts"] = ddl.began
        raw["binlog"]["MultipleTableInfos"] = list(ddl.many) or None
        self.log.ddls.append(WindowDdl(commit_ts, start_ts, job_id, 5 if state == 6 else 0, f"{ddl.query};"))
        self.log.jobs.append((commit_ts, DdlJob.from_dict(raw)))
        if state == 6:
            ddl.effect()
        return commit_ts

    def log_transaction(self, txn: Txn) -> int:
        """Log a transaction, and apply it to the model."""
        commit_ts = self.clock()
        builders: dict[int, MutationBuilder] = {}
        for change in txn.changes:
            builder = builders.setdefault(id(change.definition), MutationBuilder(change.definition))
            getattr(builder, change.op)(*(image for image in (change.before, change.after) if image is not None))
        value = encode_prewrite_value(self.version, [builder.message for builder in builders.values()])
        binlog = build.build_prewrite(txn.start_ts, b"k%d" % txn.start_ts, value)
        self.log.rows.append((commit_ts, txn.start_ts, binlog.SerializeToString(), self.version))
        for change in txn.changes:
            self._apply_to_model(change)
        return commit_ts

    def advance(self) -> None:
        """Apply everything logged since the last call as one window."""
        self.replay.advance(self.clock())

    def check(self) -> None:
        """`advance`, then assert that the target holds the model's rows."""
        self.advance()
        for name, rows in self.model().items():
            assert self.target_rows(name) == rows, name
        there = self.session.fetch_rows(
            "SELECT TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND TABLE_TYPE = 'BASE TABLE'",
            (DB,),
        )
        assert {name for (name,) in there} == set(self.tables)

    def model(self) -> dict[str, list[tuple[str | None, ...]]]:
        """The rows of each table, sorted."""
        return {
            name: sorted((tuple(row[c.id] for c in table.definition.columns) for row in table.rows), key=repr)
            for name, table in self.tables.items()
        }

    def target_rows(self, name: str) -> list[tuple[str | None, ...]]:
        """The target's rows as canonical text, sorted."""
        columns = ", ".join(_select_text(column) for column in self.table(name).columns)
        return sorted(self.session.fetch_rows(f"SELECT {columns} FROM {quote_qualified_name(DB, name)}"), key=repr)

    def rows(self, name: str) -> list[Row]:
        """The model's rows by column name."""
        table = self.tables[name]
        return [{c.name: row[c.id] for c in table.definition.columns} for row in table.rows]

    def _pending(
        self, action: Action, query: str, name: str, definition: TableDef | None, effect: Callable[[], None]
    ) -> Pending:
        table_id = definition.id if definition is not None else 0
        return Pending(self, action, query, table_id, definition, effect, (DB, name), began=self.clock())

    def _database(self, action: Action, query: str) -> int:
        info = dict(self._db.raw)
        return self.log_ddl(Pending(self, action, query, 0, None, lambda: None, (DB, ""), info))

    def _read(self, name: str, table_id: int, old: TableDef | None, clustered: bool) -> TableDef:
        """The scratch database's current definition of a table, with TiDB's ids."""
        info = table_info_of(self.upstream, ("scratch", name), dialect_of(self.upstream))
        assert info is not None
        ids = {c.name: c for c in old.all_columns} if old else {}
        most = max((c.id for c in ids.values()), default=0)
        for column in info["cols"]:
            former = ids.get(column["name"]["O"])
            if former is not None:
                column |= {"id": former.id, "origin_default": former.origin_default}
            else:
                most += 1
                column |= {"id": most, "origin_default": _origin(column) if old else None}
        keys = [i for i in info["index_info"] if i["is_primary"]]
        parts = keys[0]["idx_cols"] if keys else []
        kinds = {c["name"]["L"]: c["type"]["Tp"] for c in info["cols"]}
        single = len(parts) == 1 and kinds[parts[0]["name"]["L"]] in t.INTEGERS
        info |= {"id": table_id, "pk_is_handle": clustered and single,
                 "is_common_handle": clustered and bool(parts) and not single}  # fmt: skip
        if info["pk_is_handle"]:
            info["index_info"] = [i for i in info["index_info"] if not i["is_primary"]]
        else:
            for column in info["cols"]:
                column["type"]["Flag"] &= ~t.FLAG_PRIMARY
        return TableDef.from_json(info, self._db)

    def _apply_to_model(self, change: Change) -> None:
        table = next((x for x in self.tables.values() if x.definition.id == change.definition.id), None)
        if table is None:
            return  # dropped or truncated meanwhile
        if change.before is not None:
            seen = {c.id: change.before[c.name] for c in change.definition.columns}
            known = seen.keys() & {c.id for c in table.definition.columns}
            table.rows.remove(next(row for row in table.rows if all(row[key] == seen[key] for key in known)))
        if change.after is not None:
            after = {c.id: change.after[c.name] for c in change.definition.columns}
            table.rows.append(_move_row(after, table.definition))


def _move_row(row: Stored, definition: TableDef) -> Stored:
    """`row` with the columns of `definition`: matched by id, missing ones filled as TiDB fills them."""
    return {c.id: row[c.id] if c.id in row else derive_filled_text(c) for c in definition.columns}


def _with_id(old: TableDef, table_id: int, db: DbInfo) -> TableDef:
    return TableDef.from_json({**old.raw, "id": table_id}, db)


def _origin(column: dict[str, Any]) -> str | None:
    """TiDB's recorded value for rows written before ADD COLUMN: the default, or the zero value of a NOT NULL column."""
    if column["default"] is not None or not column["type"]["Flag"] & t.FLAG_NOT_NULL:
        return column["default"]
    return "0" if column["type"]["Tp"] in t.INTEGERS else ""


def _image(definition: TableDef, values: Mapping[str, object] | None) -> Row | None:
    if values is None:
        return None
    found = {c.name: values.get(c.name, c.default) for c in definition.columns}
    return {name: None if value is None else str(value) for name, value in found.items()}


def _select_text(column: ColumnInfo) -> str:
    name = quote_name(column.name)
    if column.tp == t.BIT:
        return f"LPAD(HEX({name}), {(column.flen + 7) // 8 * 2}, '0')"
    return f"HEX({name})" if column.is_binary else f"CAST({name} AS CHAR)"


@contextmanager
def daily_source(server: MariaDb) -> Iterator[Daily]:
    """A `Daily` that is closed at the end."""
    source = Daily(server)
    try:
        yield source
    finally:
        source.close()
