"""A small TiDB: tables, writers, and a DDL worker that takes one schema version per step, with rows between the steps.

Rows are stored by column id. A step takes effect (a new column, a key no longer enforced, dropped partitions) for the
next writer, while the DDL's binlog comes only after the last step (captures `zones`, `zones_unique`). Jobs look like
the captured ones: database and table names in lower case, the session's zone in `reorg_meta` if rows are reorganised,
and in no other job.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from random import Random
from typing import Any
from zoneinfo import ZoneInfo

from ddltables import Column, Key, Line, Live, Stored, View
from modelends import window_ends

from binlake.rows.codec import MutationBuilder, encode_prewrite_value
from binlake.rows.codec.encode import RowEncoder
from binlake.rows.schema import Action, DbInfo, DdlJob, WindowDdl
from binlake.rows.schema.forms import build_database_json, build_job_json
from binlake.wire import binlog_pb2 as pb
from binlake.wire import build

FILTERED = "archive"
"""The database that the replication excludes."""
Shown = tuple[tuple[str, ...], list[tuple[str | None, ...]]]
State = dict[tuple[str, str], Shown]
"""(database, table) as spelled -> its columns and its rows, sorted."""
ZONES = {
    "+00:00": (ZoneInfo("UTC"), {"name": "Etc/UTC", "offset": 0}),
    "+08:00": (ZoneInfo("Etc/GMT-8"), {"name": "", "offset": 28800}),
    "America/New_York": (ZoneInfo("America/New_York"), {"name": "America/New_York", "offset": 0}),
}
STRICT = 1436549152
_REORGANISES = {Action.ADD_INDEX, Action.MODIFY_COLUMN, Action.MULTI_SCHEMA_CHANGE, Action.REORGANIZE_PARTITION}


@dataclass(frozen=True)
class Renames:
    """Routes: the target's name of the replicated database, and of some of its tables (in lower case)."""

    db: str = ""
    tables: Mapping[str, str] = field(default_factory=dict)

    def shown(self, db: str, table: str) -> tuple[str, str]:
        """(db, table) at the target."""
        return self.db or db, self.tables.get(table.lower(), table)

    def config(self, db: str) -> list[dict[str, str]]:
        """In the form of `routes` of a replication of `db`."""
        target = {"schema-pattern": db.lower(), "target-schema": self.db or db}
        whole = [target] if self.db else []
        return [*whole, *({**target, "table-pattern": old, "target-table": new} for old, new in self.tables.items())]


@dataclass(frozen=True)
class Step:
    """One schema version of a DDL: how writers see its table from then on, and the effect on the rows."""

    view: View
    effect: Callable[[Live], None] | None = None


@dataclass(frozen=True)
class Ddl:
    """What the DDL worker logs: `text` as TiDB restores it, `zone`: of its session (a key of ZONES)."""

    action: Action
    text: str
    db: DbInfo
    view: View | None
    table_id: int = 0
    table_name: str = ""
    zone: str = "+00:00"
    many: tuple[View, ...] = ()
    db_info: dict[str, Any] | None = None


class World:
    """The source of one seed. `rows`, `ddls`, `jobs` are those of a CommitLog; `states`: the truth by commit_ts."""

    connection_id = 0

    def __init__(self, random: Random) -> None:
        self.random = random
        self.rows: list[tuple[int, int, bytes, int]] = []
        self.ddls: list[WindowDdl] = []
        self.jobs: list[tuple[int, DdlJob]] = []
        self.states: list[tuple[int, State]] = [(0, {})]
        self.drawn: list[str] = []
        """The DDL that ran, for a failure's message."""
        self.databases: list[DbInfo] = []
        self.tables: list[Live] = []
        self.version = 0
        self.told_zone = "+00:00"
        """The zone of sessions whose jobs do not record it: a setting of the replication."""
        self.renames = Renames()
        self.keeps = False
        """A table that is renamed out of the filter stays unchanged at the target."""
        self.left: State = {}
        """The tables that stayed in this way, by the target's names."""
        self.outside: list[Live] = []
        """Tables of the excluded database."""
        self.returned: dict[int, View] = {}
        """Renames into the filter: the table by commit_ts."""
        self._written: set[int] = set()
        """The physical tables to which the present transaction writes."""
        self._ticks, self.ids, self._rids = (itertools.count(n) for n in (1_795_000_000_000, 100, 1))

    @property
    def ends(self) -> list[int]:
        """The positions at which a window may end: at each commit, and between commits; ascending."""
        return window_ends((row[0] for row in self.rows), self.jobs, (ts for ts, _ in self.states[1:]))

    def at(self, commit_ts: int) -> State:
        """The truth after the last commit at or before `commit_ts`."""
        return next(state for ts, state in reversed(self.states) if ts <= commit_ts)

    def clock(self) -> int:
        return next(self._ticks) << 18

    # -- the DDL worker --------------------------------------------------------------------------------------------

    def create_database(self, name: str, text: str) -> DbInfo:
        info = DbInfo.from_json(build_database_json(next(self.ids), name))
        self.databases.append(info)
        self.version += 1
        self.log(Ddl(Action.CREATE_SCHEMA, text, info, None, db_info=dict(info.raw)))
        return info

    def run(self, live: Live, ddl: Ddl, steps: Sequence[Step], *, ahead_of_binlog: bool = False) -> int:
        """Run a DDL of one table, one version per step, with rows between the steps and `ahead_of_binlog` after
        them."""
        began = ready = self.clock()
        for number, step in enumerate(steps):
            self.version += 1
            if step.effect is not None:
                ready = self.clock()
                step.effect(live)
            live.view = step.view
            if number < len(steps) - 1 or ahead_of_binlog:
                for _ in range(self.random.choice((0, 1, 1, 2))):
                    self.transaction(live if self.random.random() < 0.8 else None)
        return self.log(ddl, times=(began, ready))

    def rolled_back(self, live: Live, ddl: Ddl, versions: int) -> None:
        """A DDL that took some versions and had no effect; it has a binlog all the same."""
        for _ in range(versions):
            self.version += 1
            if self.random.random() < 0.5:
                self.transaction(live)
        self.log(ddl, state=3)

    def log(self, ddl: Ddl, state: int = 6, times: tuple[int, int] = (0, 0)) -> int:
        """Log job and binlog of a DDL whose versions are taken; return its commit_ts. `times`: of its first step, and
        of the step at which all of its clauses were about to become visible."""
        start_ts, commit_ts, job_id = self.clock(), self.clock(), next(self.ids)
        view = ddl.view
        raw = build_job_json(
            job_id, ddl.action, ddl.text, schema=(ddl.db.id, ddl.db.name.lower()),
            table=(ddl.table_id or (view.id if view else 0), ddl.table_name or (view.name.lower() if view else "")),
            version=self.version, start_ts=start_ts, finished_ts=commit_ts + 1, db_info=ddl.db_info,
            table_info=dict(view.definition.raw) if view else None,
        )  # fmt: skip
        raw |= {"state": state, "charset": "", "collate": "", "reorg_meta": None}
        raw["real_start_ts"] = times[0]
        if ddl.action == Action.MULTI_SCHEMA_CHANGE:
            raw["multi_schema_info"] = {"sub_jobs": [{"real_start_ts": times[0], "snapshot_ver": times[1]}]}
        if ddl.action == Action.REORGANIZE_PARTITION:
            raw["snapshot_ver"] = times[1]
        raw["binlog"]["MultipleTableInfos"] = [dict(one.definition.raw) for one in ddl.many] or None
        if ddl.action in _REORGANISES:
            raw["reorg_meta"] = {"sql_mode": STRICT, "warnings": {}, "location": ZONES[ddl.zone][1],
                                 "reorg_tp": 0}  # fmt: skip
        self.ddls.append(WindowDdl(commit_ts, start_ts, job_id, 5 if state == 6 else 0, f"{ddl.text};"))
        self.jobs.append((commit_ts, DdlJob.from_dict(raw)))
        self.drawn.append(f"{commit_ts} v{self.version} [{ddl.db.name}, {ddl.zone}] {ddl.text}")
        self._record_state(commit_ts)
        return commit_ts

    # -- writers ---------------------------------------------------------------------------------------------------

    def transaction(self, only: Live | None = None) -> int:
        """Commit a random transaction of a writer of the present version; return its commit_ts, 0 if nothing
        changed."""
        start_ts = self.clock()
        self._written.clear()
        builders: dict[View, MutationBuilder] = {}
        for _ in range(self.random.choice((1, 1, 2, 3))):
            if only is None and not self.tables:
                return 0
            live = only or self.random.choice(self.tables)
            builder = builders.setdefault(live.view, MutationBuilder(live.view.definition))
            self.random.choice((self._insert, self._insert, self._update, self._update, self._delete))(live, builder)
        messages = [builder.message for builder in builders.values() if builder.message.sequence]
        if not messages:
            return 0
        commit_ts = self.clock()
        # The transaction's primary key is its least key.
        key = b"t" + (min(self._written) + (1 << 63)).to_bytes(8, "big") + b"_r" + start_ts.to_bytes(8, "big")
        binlog = build.build_prewrite(start_ts, key, encode_prewrite_value(self.version, messages))
        self.rows.append((commit_ts, start_ts, binlog.SerializeToString(), self.version))
        self._record_state(commit_ts)
        return commit_ts

    def late(self, live: Live, back: Callable[[], None], again: Callable[[], None]) -> None:
        """A transaction of the version before the last DDL's last step, committed after its binlog. `back` undoes that
        step's effect on the tables, and `again` repeats it."""
        back()
        self.version -= 1
        commit_ts = self.transaction(live)
        self.version += 1
        again()
        if commit_ts:
            self.states.pop()
            self._record_state(commit_ts)

    def _insert(self, live: Live, builder: MutationBuilder) -> None:
        view = live.view
        stored = {column.id: self._value(column) for column in view.columns}
        line = Line(next(self._rids), stored, view)
        if self._fits(live, line):
            live.lines.append(line)
            self._written.add(line.part or view.id)
            self._log_insert(line, builder)

    def _update(self, live: Live, builder: MutationBuilder) -> None:
        view = live.view
        if not live.lines:
            return
        line = self.random.choice(live.lines)
        before = line.read(view)
        chosen = self.random.sample(view.columns, self.random.randint(1, len(view.columns)))
        after = {**before, **{column.id: self._value(column) for column in chosen}}
        new = Line(line.rid, after, view)
        if after == before or not self._fits(live, new, instead=line):
            return
        live.lines[live.lines.index(line)] = new
        self._written |= {line.part or view.id, new.part or view.id}
        if _handle(view, before) == _handle(view, after) and line.part == new.part:
            builder.update(_named(view, before), _named(view, after), line.rid)
            if line.part in view.twice and view.leaving:
                self._log_delete(Line(line.rid, before, view), builder)
            elif line.part in view.twice:
                builder.update(_named(view, before), _named(view, after), line.rid)
        else:  # a row that moves is a DELETE and an INSERT (tidb-binlog 1.12)
            self._log_removal(line, view, builder)
            self._log_insert(new, builder)

    def _delete(self, live: Live, builder: MutationBuilder) -> None:
        if live.lines:
            line = self.random.choice(live.lines)
            live.lines.remove(line)
            self._written.add(line.part or live.view.id)
            self._log_removal(line, live.view, builder)

    def _log_insert(self, line: Line, builder: MutationBuilder) -> None:
        view = line.written
        for _ in range(2 if line.part in view.twice and not view.leaving else 1):
            builder.insert(_named(view, line.stored), line.rid)

    def _log_removal(self, line: Line, view: View, builder: MutationBuilder) -> None:
        for _ in range(2 if line.part in view.twice else 1):
            self._log_delete(line, builder)

    def _log_delete(self, line: Line, builder: MutationBuilder) -> None:
        # A row is deleted as it was written: with the definition of that time (tidb-binlog 5.5).
        values = _named(line.written, line.stored)
        builder.message.deleted_rows.append(RowEncoder(line.written.definition).delete(values, line.rid))
        builder.message.sequence.append(pb.DeleteRow)

    def _value(self, column: Column) -> str | None:
        if not column.not_null and self.random.random() < 0.2:
            return None
        return self.random.choice(column.type.values)

    def _fits(self, live: Live, line: Line, instead: Line | None = None) -> bool:
        """Whether the table accepts the row: a partition takes it, and no enforced key has its values."""
        view = live.view
        if view.parts:
            line.part = view.part_of(line.stored, seconds_of(line.stored[view.parted]) if view.moments else None)
            if line.part is None or view.only not in (0, line.part):
                return False
        others = [other.read(view) for other in live.lines if other is not instead]
        return not any(
            values_of(key, line.stored) == values_of(key, other) and None not in values_of(key, other)
            for key in view.keys if key.unique and key.enforced for other in others
        )  # fmt: skip

    def leave(self, live: Live) -> None:
        """The table leaves the filter; if configured so, it stays at the target."""
        self.tables.remove(live)
        self.outside.append(live)
        if self.keeps:
            self.left[self.renames.shown(*live.view.full_name)] = self.shown(live)

    def take_in(self, live: Live, ddl: Ddl, new: View) -> None:
        """A table enters the filter as `new`; a table of that name at the target is replaced."""
        self.outside.remove(live)
        self.version += 1
        live.view = new
        self.tables.append(live)
        self.left.pop(self.renames.shown(*new.full_name), None)
        self.returned[self.log(ddl)] = new

    def shown(self, live: Live) -> Shown:
        """Columns and rows as writers see them now."""
        rows = [tuple(line.read(live.view).values()) for line in live.lines]
        return tuple(column.name for column in live.view.columns), sorted(rows, key=repr)

    def _record_state(self, commit_ts: int) -> None:
        state: State = dict(self.left)
        for live in self.tables:
            view = live.view
            if view.db.name.lower() != FILTERED:
                state[self.renames.shown(*view.full_name)] = self.shown(live)
        self.states.append((commit_ts, state))


def values_of(key: Key, stored: Stored) -> tuple[str | None, ...]:
    """The values of a key's columns."""
    return tuple(stored[column] for column in key.columns)


def seconds_of(text: str | None) -> int | None:
    """UNIX_TIMESTAMP of a text at +00:00."""
    if text is None:
        return None
    return int(datetime.fromisoformat(text[:19]).replace(tzinfo=UTC).timestamp())


def _named(view: View, stored: Stored) -> dict[str, str | None]:
    return {column.name: stored[column.id] for column in view.columns if column.id in stored}


def _handle(view: View, stored: Stored) -> tuple[str | None, ...]:
    primary = view.primary
    return values_of(primary, stored) if primary is not None else ()
