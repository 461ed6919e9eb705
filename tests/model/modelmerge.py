"""Three tables of the source merged into one of the target, with DDL at different times, drawn by seed, on real
servers.

The source's tables are real, too: each statement runs in a separate database on the same server, so the server, not the
model, decides how a column is filled and how MODIFY converts a value.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from modellog import log_of
from modelwindow import NAME, Converter, Events
from support.mariadb import MariaDb, execute, rows
from support.workload import Workload, integer, text

from binlake.changes.net import RowEvent
from binlake.config import Replication
from binlake.ddl.ddls import build_window_schemas, plan_locked_ddls
from binlake.ddl.definitions import LandedDdl
from binlake.ddl.shardlocks import Locks
from binlake.ddl.sharedrows import add_columns, apply_holds, find_released_ranges, list_extras
from binlake.ddl.targets import Naming, TargetTables
from binlake.rows.codec import MutationBatch
from binlake.rows.schema import Action
from binlake.rows.schema import mysqltypes as t
from binlake.rules import Rules
from binlake.testkit.workload.spec import Col, build_column_json

TABLES = (("s1", "t_1"), ("s2", "t_2"), ("s3", "t_3"))
DB, TABLE = "xs", "t"
POOL = {"a": integer("a", default="1"), "b": text("b", 20, not_null=True, default="b0"), "c": integer("c")}
"""The columns that shards add; all shards use the same definition of each."""
LENGTHS = (20, 40, 80)


def rules_of(mode: str) -> Rules:
    """The rules for the three tables, with `shard-mode`."""
    routes = [{"schema-pattern": "s?", "target-schema": DB},
              {"schema-pattern": "s?", "table-pattern": "t_*", "target-schema": DB, "target-table": TABLE}]  # fmt: skip
    raw = {"name": NAME, "lake": {"path": "x"}, "routes": routes, "shard-mode": mode}
    return Rules.of(Replication.model_validate(raw))


@dataclass
class Shard:
    """A table of the source: its columns by name, its rows by id, and its former names.

    `steps`: its DDL that wait, each with the shape after it and, from before it, rows, columns and how many of the
    planned DDL it had run. `ids`: of all rows that it ever had.
    """

    db: str
    table: str
    columns: dict[str, Col]
    rows: dict[int, dict[str, str | None]] = field(default_factory=dict)
    had: set[str] = field(default_factory=set)
    steps: list[tuple[tuple[object, ...], list[tuple[Any, ...]], dict[str, Col], int]] = field(default_factory=list)
    made: int = 0
    ids: set[int] = field(default_factory=set)

    @property
    def shape(self) -> tuple[object, ...]:
        """The columns and lengths that its definition allows."""
        return tuple(sorted((name, column.tp, column.flen) for name, column in self.columns.items()))

    @property
    def base(self) -> tuple[dict[str, Col], int]:
        """The columns that the target has of it, and how many of the planned DDL it had run with them."""
        return self.steps[0][2:] if self.steps else (self.columns, self.made)


class MergedShards:
    """Draws the history of the shards: `server` has their tables, `w` the binlogs they log."""

    def __init__(self, server: MariaDb, random: Random) -> None:
        self.server, self.random, self.w = server, random, Workload()
        self.shards: list[Shard] = []
        self.gone: list[tuple[str, str]] = []
        self.left: set[int] = set()
        self.may_follow = 0
        self.keys = iter(range(1, 10_000))
        self.drawn: list[str] = []
        self.plan: list[tuple[dict[str, Col], str, tuple[str, str] | None]] = []
        for db, table in TABLES:
            self.create_database(db)
            self.create(Shard(db, table, {"id": integer("id"), "v": text("v", LENGTHS[0])}))

    def create_database(self, name: str) -> None:
        """Create an empty database of the source."""
        self.w.create_database(name)
        self.run(f"CREATE DATABASE {name} CHARACTER SET utf8mb4 COLLATE utf8mb4_bin")

    def create(self, shard: Shard) -> None:
        """Create an empty table of the source."""
        columns = list(shard.columns.values())
        self.w.create_table(shard.db, shard.table, columns, ["id"])
        others = ", ".join(column.sql for column in columns if column.name != "id")
        self.run(f"CREATE TABLE {shard.db}.{shard.table} (id INT PRIMARY KEY, {others})")
        shard.had |= shard.columns.keys()
        self.shards.append(shard)

    def run(self, *statements: str) -> None:
        """Run a statement at the source."""
        self.drawn += statements
        execute(self.server, *statements)

    def write(self) -> None:
        """A transaction of one shard, or of several."""
        open_ = self.w.begin()
        for shard in self.random.sample(self.shards, self.random.randint(1, min(2, len(self.shards)))):
            step = self.random.choice(("insert", "insert", "update", "move", "delete"))
            place, name = (shard.db, shard.table), f"{shard.db}.{shard.table}"
            if step == "insert" or not shard.rows:
                row = self._row(shard, next(self.keys))
                open_.insert(*place, **row)
                self.run(f"INSERT INTO {name} ({', '.join(row)}) VALUES ({', '.join(map(_literal, row.values()))})")
                shard.rows[int(row["id"] or 0)] = row
                shard.ids.add(int(row["id"] or 0))
                continue
            key = self.random.choice(sorted(shard.rows))
            before = shard.rows.pop(key)
            if step == "delete":
                open_.delete(*place, **before)
                self.run(f"DELETE FROM {name} WHERE id = {key}")
                continue
            after = self._row(shard, next(self.keys) if step == "move" else key)
            open_.update(*place, before, **after)
            sets = ", ".join(f"{column} = {_literal(value)}" for column, value in after.items())
            self.run(f"UPDATE {name} SET {sets} WHERE id = {key}")
            shard.rows[int(after["id"] or 0)] = after
            shard.ids.add(int(after["id"] or 0))
        open_.commit()

    def _row(self, shard: Shard, key: int) -> dict[str, str | None]:
        values: dict[str, str | None] = {"id": str(key)}
        for name, column in shard.columns.items():
            if name != "id":
                free = column.tp in (t.LONG, t.LONGLONG)
                values[name] = str(self.random.randrange(100)) if free else f"{name}{self.random.randrange(100)}"
        return values

    def alter(self, shard: Shard, columns: dict[str, Col], query: str, renamed: tuple[str, str] | None = None) -> int:
        """Run `query` on one shard, which then has `columns`, one `renamed` (from, to); return its commit_ts."""
        info = json.loads(json.dumps(self.w.table(shard.db, shard.table).raw))
        known = {column["name"]["O"]: column for column in info["cols"]}
        if renamed is not None:
            known[renamed[1]] = known.pop(renamed[0])
        info["max_col_id"] = max(info.get("max_col_id", 0), *(column["id"] for column in info["cols"]))
        info["cols"] = []
        for offset, (name, column) in enumerate(columns.items()):
            if name in known:
                number, fill = known[name]["id"], known[name]["origin_default"]
            else:
                info["max_col_id"] += 1
                number, fill = info["max_col_id"], column.default
            made = build_column_json(column, number, offset, primary=name == "id")
            info["cols"].append({**made, "origin_default": fill})
        self.w._put(shard.db, info)
        text_ = f"ALTER TABLE {shard.db}.{shard.table} {query}"
        at = self.w._ddl(Action.MULTI_SCHEMA_CHANGE, shard.db, shard.table, text_, info)
        self.run(text_)
        for row in (*shard.rows.values(), *self.w.rows[shard.db, shard.table]):
            if renamed is not None:
                row[renamed[1]] = row.pop(renamed[0])
            for name in row.keys() - columns.keys():
                del row[name]
            row |= {name: column.default for name, column in columns.items() if name not in row}
        shard.had |= columns.keys()
        shard.columns = columns
        return at

    def draw_ddl(self) -> None:
        """A DDL of one shard: columns are added and dropped, a text gets longer or shorter."""
        shard = self.random.choice(self.shards)
        columns = dict(shard.columns)
        kind = self.random.choice(("add", "add", "drop", "length"))
        # When a column is added again that the target kept for other shards, this shard's rows there have its old
        # values.
        free = [name for name in POOL if name not in columns and name not in shard.had]
        if kind == "add" and free:
            new = self.random.sample(free, self.random.randint(1, len(free)))
            columns |= {name: POOL[name] for name in new}
            self.alter(shard, columns, ", ".join(f"ADD COLUMN {POOL[name].sql}" for name in new))
        elif kind == "drop" and (own := [name for name in POOL if name in columns]):
            name = self.random.choice(own)
            del columns[name]
            self.alter(shard, columns, f"DROP COLUMN {name}")
        elif kind == "length":
            columns["v"] = replace(columns["v"], flen=self.random.choice(LENGTHS))
            self.alter(shard, columns, f"MODIFY COLUMN v VARCHAR({columns['v'].flen})")

    def draw_step(self) -> None:
        """The next DDL of one shard; all shards run the same DDL, each at its own time."""
        shard = self.random.choice(self.shards)
        if shard.made == len(self.plan):
            self.plan.append(self._next_ddl(shard))
        columns, query, renamed = self.plan[shard.made]
        shape, before = shard.shape, (self._rows_of(shard), dict(shard.columns), shard.made)
        shard.made += 1
        self.alter(shard, dict(columns), query, renamed)
        if shard.shape != shape:
            shard.steps.append((shard.shape, *before))
            self.release()

    def _next_ddl(self, shard: Shard) -> tuple[dict[str, Col], str, tuple[str, str] | None]:
        columns = dict(shard.columns)
        own, free = ([name for name in POOL if (name in columns) == has] for has in (True, False))
        kind = self.random.choice(("add", "add", "drop", "length", "number", "rename"))
        if kind == "add" and free:
            name = self.random.choice(free)
            return {**columns, name: POOL[name]}, f"ADD COLUMN {POOL[name].sql}", None
        if kind == "drop" and own:
            del columns[own[0]]
            return columns, f"DROP COLUMN {own[0]}", None
        if kind == "rename" and "a" in columns and "c" not in columns:
            renamed = {"c" if name == "a" else name: column for name, column in columns.items()}
            return (
                {name: replace(column, name=name) for name, column in renamed.items()},
                "RENAME COLUMN a TO c",
                ("a", "c"),
            )
        if kind == "number" and "c" in columns:
            columns["c"] = replace(columns["c"], tp=t.LONGLONG, flen=20)
            return columns, "MODIFY COLUMN c BIGINT(20)" + _default(columns["c"]), None
        columns["v"] = replace(columns["v"], flen=self.random.choice(LENGTHS))
        return columns, f"MODIFY COLUMN v VARCHAR({columns['v'].flen})", None

    def release(self) -> None:
        """As in DM, a DDL that all shards have run no longer waits."""
        while all(shard.steps for shard in self.shards):
            first = self.shards[0]
            every = [[shape for shape, *_ in shard.steps] for shard in self.shards]
            reached = next((shape for shape, *_ in first.steps if all(shape in own for own in every)), None)
            if reached is None:
                return
            for shard in self.shards:
                del shard.steps[: [own for own, *_ in shard.steps].index(reached) + 1]

    def _rows_of(self, shard: Shard) -> list[tuple[Any, ...]]:
        columns = ", ".join(sorted(shard.columns))
        return rows(self.server, f"SELECT {columns} FROM {shard.db}.{shard.table} ORDER BY id")

    def held_differences(self) -> Iterator[str]:
        """Where the target differs from each shard's state before the first DDL that still waits."""
        wanted = sorted((row for shard in self.shards
                         for row in (shard.steps[0][1] if shard.steps else self._rows_of(shard))), key=str)  # fmt: skip
        columns = rows(self.server, "SELECT column_name FROM information_schema.columns"
                                    f" WHERE table_schema = '{DB}' AND table_name = '{TABLE}' ORDER BY 1")  # fmt: skip
        names = sorted(name for (name,) in columns)
        there = sorted(rows(self.server, f"SELECT {', '.join(names)} FROM {DB}.{TABLE}"), key=str)
        key = names.index("id")
        there, wanted = ([row for row in some if row[key] not in self.left] for some in (there, wanted))
        if there != wanted:
            yield f"{names}: {there}, not {wanted}"

    def differences(self) -> Iterator[str]:
        """Where the target differs from the present shards, column by column of each."""
        for shard in self.shards:
            columns = ", ".join(shard.columns)
            source = rows(self.server, f"SELECT {columns} FROM {shard.db}.{shard.table} ORDER BY id")
            keys = ", ".join(map(str, shard.rows)) or "0"
            there = rows(self.server, f"SELECT {columns} FROM {DB}.{TABLE} WHERE id IN ({keys}) ORDER BY id")
            if there != source:
                yield f"{shard.db}.{shard.table} ({columns}): {there}, not {source}"
        count = sum(len(shard.rows) for shard in self.shards)
        left = ", ".join(map(str, self.left)) or "0"
        if rows(self.server, f"SELECT COUNT(*) FROM {DB}.{TABLE} WHERE id NOT IN ({left})") != [(count,)]:
            yield f"the target does not have the {count} rows of all"


class MergingConverter(Converter):
    """A Converter that adds columns that a shard lacks to its rows, and holds waiting rows, as merge and compact do."""

    locks: Locks = Locks()
    _decoded: tuple[pa.Table, ...] = ()

    def logged(self, lo: int, hi: int) -> tuple[list[LandedDdl], Events]:
        base, log = self._schema(lo), self.source
        ddls = [ddl for ddl in log.ddls if lo < ddl.commit_ts <= hi]
        jobs = [(ts, job) for ts, job in log.jobs if lo < ts <= hi]
        schemas = build_window_schemas(base, ddls, jobs, lo)
        planned, self.locks = plan_locked_ddls(base, ddls, jobs, self.rules, self.ignored, lo, self.locks.still_open)
        batch = MutationBatch(self.rules.route)
        for commit_ts, start_ts, payload, _ in log.rows:
            if lo < commit_ts <= hi:
                batch.add(payload, commit_ts, start_ts, schemas.find_schema_at(commit_ts))
        made = add_columns(batch.take(), list_extras(schemas, Naming(self.rules), self.locks, lo))
        own = pa.Table.from_batches([made])
        events: Events = {}
        for row in self._placed(own, lo, hi).to_pylist(maps_as_pydicts="strict"):
            # A column that a row in the lake does not have is NULL.
            absent = dict.fromkeys(POOL)
            images = (None if row[side] is None else {**absent, **row[side]} for side in ("before", "after"))
            event = RowEvent(*(row[name] for name in ("commit_ts", "start_ts", "seq", "op")), *images)
            events.setdefault((row["db"], row["table"]), []).append(event)
        self._decoded += (own,)
        return planned, events

    def _placed(self, own: pa.Table, lo: int, hi: int) -> pa.Table:
        parts = [own]
        for one in find_released_ranges(self.locks.holds, lo, hi):
            for table in self._decoded:
                inside = pc.and_(pc.greater(table["commit_ts"], one.lo), pc.less_equal(table["commit_ts"], one.hi))
                of = pc.and_(
                    pc.equal(table["source_db"], one.source[0]), pc.equal(table["source_table"], one.source[1])
                )
                parts.append(table.filter(pc.and_(inside, of)))
        return apply_holds(pa.concat_tables(parts), self.locks.holds, hi)

    def _targets(self, ts: int) -> TargetTables:
        return TargetTables(self._schema(ts), Naming(self.rules), self.locks.list_definitions_at(ts))


def converter_of(shards: MergedShards, random: Random, mode: str) -> MergingConverter:
    """Converts windows of what the shards have logged so far."""
    return MergingConverter(log_of(shards.w), random, rules_of(mode))


def _default(column: Col) -> str:
    return "" if column.default is None else f" DEFAULT '{column.default}'"


def _literal(value: str | None) -> str:
    return "NULL" if value is None else f"'{value}'"
