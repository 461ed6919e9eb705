"""A small TiDB to write tests with: DDL jobs, transactions, and the state to which they must lead.

It keeps its tables as plain rows next to what it logs, so a test compares the target with the model and not with a
second run of the pipeline. `clock` gives timestamps (a counter, or a real PD); `sink` receives each binlog as it is
logged (a list, or a pump client). With the defaults, a workload can be written as a capture folder (`write`).
"""

from __future__ import annotations

import itertools
import json
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from binlake.rows.codec import MutationBuilder, encode_prewrite_value
from binlake.rows.schema import Action, DbInfo, TableDef
from binlake.rows.schema import mysqltypes as t
from binlake.rows.schema.forms import build_database_json, build_index_json, build_job_json, build_table_json
from binlake.testkit.workload.spec import Col, build_column_json, create_sql
from binlake.wire import binlog_pb2 as pb
from binlake.wire import build

Row = dict[str, str | None]


def integer(name: str, **more: Any) -> Col:
    """INT."""
    return Col(name, **more)


def text(name: str, length: int = 64, **more: Any) -> Col:
    """VARCHAR in utf8mb4_bin."""
    return Col(name, t.VARCHAR, length, **{"charset": "utf8mb4", "collate": "utf8mb4_bin", **more})


def counter(start_ms: int = 1_795_000_000_000) -> Callable[[], int]:
    """A clock that counts up by one millisecond per call."""
    ticks = itertools.count(start_ms)
    return lambda: next(ticks) << 18


@dataclass
class Workload:
    """One source cluster."""

    clock: Callable[[], int] = field(default_factory=counter)
    sink: Callable[[pb.Binlog], object] | None = None
    logged: list[pb.Binlog] = field(default_factory=list)
    jobs: list[dict[str, Any]] = field(default_factory=list)
    version: int = 0
    rows: dict[tuple[str, str], list[Row]] = field(default_factory=dict)
    _ids: Any = field(default_factory=lambda: itertools.count(100))
    _dbs: dict[str, DbInfo] = field(default_factory=dict)
    _tables: dict[tuple[str, str], TableDef] = field(default_factory=dict)

    def copy(self) -> Workload:
        """A copy with the same history; both continue with the same clock."""
        made = replace(self, logged=list(self.logged), jobs=list(self.jobs), rows=self.states())
        made._dbs, made._tables = dict(self._dbs), dict(self._tables)
        return made

    def log(self, binlog: pb.Binlog) -> None:
        """Send one binlog to the pumps."""
        self.logged.append(binlog)
        if self.sink is not None:
            self.sink(binlog)

    def table(self, db: str, name: str) -> TableDef:
        """The current definition."""
        return self._tables[db, name]

    def create_database(self, name: str) -> int:
        """CREATE DATABASE; return its commit_ts."""
        info = build_database_json(next(self._ids), name)
        self._dbs[name] = DbInfo.from_json(info)
        return self._ddl(Action.CREATE_SCHEMA, name, "", f"CREATE DATABASE `{name}`", db_info=info)

    def create_table(
        self, db: str, name: str, columns: Sequence[Col], primary: Sequence[str] = (), unique: Sequence[str] = ()
    ) -> int:
        """CREATE TABLE with a clustered integer key if `primary` is one integer column; return its commit_ts."""
        info = self._info(next(self._ids), name, columns, primary, unique)
        self._put(db, info)
        self.rows[db, name] = []
        return self._ddl(Action.CREATE_TABLE, db, name, create_sql(name, columns, _keys(primary, unique)), info)

    def add_column(self, db: str, name: str, column: Col) -> int:
        """ADD COLUMN at the end, filled with its default; return its commit_ts."""
        info = json.loads(json.dumps(self.table(db, name).raw))
        new = build_column_json(column, max(c["id"] for c in info["cols"]) + 1, len(info["cols"]))
        info["cols"].append({**new, "origin_default": column.default})
        self._put(db, info)
        for row in self.rows[db, name]:
            row[column.name] = column.default
        return self._ddl(Action.ADD_COLUMN, db, name, f"ALTER TABLE `{name}` ADD COLUMN {column.sql}", info)

    def drop_column(self, db: str, name: str, column: str) -> int:
        """DROP COLUMN; return its commit_ts."""
        info = json.loads(json.dumps(self.table(db, name).raw))
        info["cols"] = [c for c in info["cols"] if c["name"]["O"] != column]
        for offset, kept in enumerate(info["cols"]):
            kept["offset"] = offset
        self._put(db, info)
        for row in self.rows[db, name]:
            del row[column]
        return self._ddl(Action.DROP_COLUMN, db, name, f"ALTER TABLE `{name}` DROP COLUMN `{column}`", info)

    def truncate(self, db: str, name: str) -> int:
        """TRUNCATE TABLE; return its commit_ts."""
        old = self.table(db, name)
        info = {**old.raw, "id": next(self._ids)}
        self._put(db, info)
        self.rows[db, name] = []
        return self._ddl(Action.TRUNCATE_TABLE, db, name, f"TRUNCATE TABLE `{name}`", info, table_id=old.id)

    def drop_table(self, db: str, name: str) -> int:
        """DROP TABLE; return its commit_ts."""
        old = self._tables.pop((db, name))
        del self.rows[db, name]
        return self._ddl(Action.DROP_TABLE, db, name, f"DROP TABLE `{name}`", dict(old.raw))

    def begin(self) -> Txn:
        """Start a transaction; nothing is logged before it ends."""
        return Txn(self, self.clock())

    def states(self) -> dict[tuple[str, str], list[Row]]:
        """The current rows of all tables."""
        return {name: [dict(row) for row in rows] for name, rows in self.rows.items()}

    def write(self, folder: Path, cluster_id: int = 1) -> Path:
        """Write everything logged so far as a capture folder."""
        folder.mkdir(parents=True, exist_ok=True)
        payloads = [binlog.SerializeToString() for binlog in self.logged]
        (folder / "binlogs.bin").write_bytes(b"".join(struct.pack("<I", len(p)) + p for p in payloads))
        (folder / "ddl_jobs.jsonl").write_text("".join(json.dumps(job) + "\n" for job in self.jobs))
        (folder / "meta.json").write_text(json.dumps({"case": folder.name, "cluster_id_in_requests": {cluster_id: 1}}))
        return folder

    def _put(self, db: str, info: dict[str, Any]) -> None:
        self._tables[db, info["name"]["O"]] = TableDef.from_json(info, self._dbs[db])

    def _info(
        self, table_id: int, name: str, columns: Sequence[Col], primary: Sequence[str], unique: Sequence[str]
    ) -> dict[str, Any]:
        cols = [build_column_json(column, n + 1, n, primary=column.name in primary) for n, column in enumerate(columns)]
        offsets = {column.name: offset for offset, column in enumerate(columns)}
        handle = len(primary) == 1 and next(c for c in columns if c.name == primary[0]).tp in t.INTEGERS
        indexes = []
        if primary and not handle:
            parts = [(key, offsets[key]) for key in primary]
            indexes.append(build_index_json(1, "PRIMARY", parts, unique=True, primary=True))
        for n, key in enumerate(unique):
            indexes.append(build_index_json(2 + n, f"uk_{key}", [(key, offsets[key])], unique=True, primary=False))
        return build_table_json(table_id, name, cols, indexes, pk_is_handle=handle)

    def _ddl(
        self, action: Action, db: str, table: str, query: str, info: dict[str, Any] | None = None, *,
        db_info: dict[str, Any] | None = None, table_id: int | None = None,
    ) -> int:  # fmt: skip
        self.version += 1
        job_id, start_ts = next(self._ids), self.clock()
        prewrite = build.build_prewrite(
            start_ts, b"ddl", ddl_query=f"{query};".encode(), ddl_job_id=job_id, ddl_schema_state=5
        )
        self.log(prewrite)
        commit_ts = self.clock()
        self.jobs.append(build_job_json(
            job_id, action, query, schema=(self._dbs[db].id, db),
            table=(table_id or (info["id"] if info else 0), table), version=self.version, start_ts=start_ts,
            finished_ts=commit_ts + 1, db_info=db_info, table_info=info,
        ))  # fmt: skip
        self.log(build.build_commit(prewrite, commit_ts))
        return commit_ts


@dataclass
class Txn:
    """A transaction; the model gets its row changes at commit."""

    workload: Workload
    start_ts: int
    changes: list[tuple[str, TableDef, Row | None, Row | None]] = field(default_factory=list)

    def insert(self, db: str, table: str, **row: object) -> Txn:
        """INSERT a row."""
        return self._add("insert", db, table, None, row)

    def delete(self, db: str, table: str, **row: object) -> Txn:
        """DELETE a row, given with all its columns."""
        return self._add("delete", db, table, row, None)

    def update(self, db: str, table: str, before: Mapping[str, object], **after: object) -> Txn:
        """UPDATE the row `before`; columns not named in `after` keep their values."""
        return self._add("update", db, table, before, {**before, **after})

    def prewrite(self) -> pb.Binlog:
        """Log the prewrite binlog (P)."""
        builders: dict[int, MutationBuilder] = {}
        for op, table, before, after in self.changes:
            builder = builders.setdefault(table.id, MutationBuilder(table))
            images = [image for image in (before, after) if image is not None]
            getattr(builder, op)(*images)
        value = encode_prewrite_value(self.workload.version, [b.message for b in builders.values()])
        binlog = build.build_prewrite(self.start_ts, b"k%d" % self.start_ts, value)
        self.workload.log(binlog)
        return binlog

    def commit(self, prewritten: pb.Binlog | None = None) -> int:
        """Log P (unless `prewritten` is given) and C; return the commit_ts."""
        prewritten = prewritten or self.prewrite()
        commit_ts = self.workload.clock()
        self.workload.log(build.build_commit(prewritten, commit_ts))
        for _, table, before, after in self.changes:
            rows = self.workload.rows[table.db, table.name]
            if before is not None:
                rows.remove(before)
            if after is not None:
                rows.append(after)
        return commit_ts

    def rollback(self) -> None:
        """Log P and R."""
        self.workload.log(build.build_rollback(self.prewrite()))

    def _add(
        self, op: str, db: str, table: str, before: Mapping[str, object] | None, after: Mapping[str, object] | None
    ) -> Txn:
        definition = self.workload.table(db, table)
        self.changes.append((op, definition, _row(definition, before), _row(definition, after)))
        return self


def _row(table: TableDef, values: Mapping[str, object] | None) -> Row | None:
    if values is None:
        return None
    found = {column.name: values.get(column.name, column.default) for column in table.columns}
    return {name: None if value is None else str(value) for name, value in found.items()}


def _keys(primary: Sequence[str], unique: Sequence[str]) -> list[str]:
    parts = [f"PRIMARY KEY({','.join(f'`{key}`' for key in primary)})"] if primary else []
    return parts + [f"UNIQUE KEY `uk_{key}`(`{key}`)" for key in unique]
