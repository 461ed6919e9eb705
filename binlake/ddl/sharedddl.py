"""Judges DDL of tables that share a target with other source tables, by `shard-mode` (hazards R-15).

Such a DDL never removes the rows of the other tables.
"""

from __future__ import annotations

from dataclasses import replace

from binlake.ddl.deciding import NO_CHANGE, Case, Decider, Sides, format_table_name
from binlake.ddl.definitions import SYNC_DDL, LandedDdl
from binlake.ddl.joined import (
    Conflict,
    describe_other_shape,
    extend_known,
    fill_for_others,
    join_tables,
    list_lacking_columns,
    number_columns_as,
    write_alter,
)
from binlake.ddl.optimistic import SharedChange, join_change, require_same_fill
from binlake.ddl.pessimistic import LockKeeper, Release
from binlake.ddl.shardlocks import Hold, Locks, Name, Resolution, as_table, format_names
from binlake.ddl.targets import Naming, RowLayout, TargetTables, find_widest
from binlake.errors import ConfigError, SchemaError
from binlake.rows.schema import Action, TableDef
from binlake.rows.schema.forms import fold_pair
from binlake.rows.schema.state import DdlSide

REMOVES = frozenset(
    {Action.DROP_SCHEMA, Action.DROP_TABLE, Action.DROP_VIEW, Action.DROP_SEQUENCE, Action.TRUNCATE_TABLE}
)
_UNLIKE = "the tables that share a target differ in more than added columns"
_SAME_SHAPE = "shared table: the target has the shape that all its tables need"


class SharedJudge(Decider):
    """Judges DDL in commit order. `tables`: the target's, updated by each DDL; `locks`: the holds at the start."""

    def __init__(self, naming: Naming, tables: TargetTables, locks: Locks) -> None:
        super().__init__(naming)
        self._tables = tables
        self.keeper = LockKeeper(tables, locks)
        self._released: list[LandedDdl] = []

    def judge(
        self, case: Case, sides: Sides, neighbours: dict[int, list[TableDef]], shared: TableDef
    ) -> LandedDdl | None:
        """The decision on a DDL of a table that shares its target; None = the DDL runs unchanged."""
        if self._rules.shard_mode == "pessimistic":
            return self._judge_waiting(case, sides, neighbours, shared)
        old, new = ({table.id: table for table in side.tables} for side in sides)
        if case.job.type in REMOVES or not new:
            what = f"{format_table_name(shared)} shares its target with other tables: its rows stay there"
            removed = old.get(shared.id)
            if self._is_optimistic and case.job.type == Action.DROP_TABLE and removed is not None and not new:
                return self._judge_joined(case, sides, (removed, None), neighbours[removed.id], what)
            if removed is not None and not new:
                what += self._describe_left_columns(removed, neighbours[removed.id])
            return self._skip(case, f"shared table: {what}", NO_CHANGE, what)
        if not old:
            others = [each for each in self._tables.list_sources(shared) if each.id != shared.id]
            if self._is_optimistic:
                return self._judge_joined(case, sides, (None, new[shared.id]), others)
            return self._judge_creation(case, new[shared.id])
        moved = [
            t for key, t in new.items() if key in old and self._find_target_name(old[key]) != self._find_target_name(t)
        ]
        if moved or set(old) != set(new):
            raise self._build_unmergeable_error(case, "a rename or swap moves a table that shares its target")
        if self._is_optimistic:
            key = next(iter(new))
            return self._judge_joined(case, sides, (old[key], new[key]), neighbours[key])
        return self._judge_alteration(case, old, new, neighbours)

    @property
    def _is_optimistic(self) -> bool:
        return self._rules.shard_mode == "optimistic"

    def _judge_joined(
        self,
        case: Case,
        sides: Sides,
        change: tuple[TableDef | None, TableDef | None],
        was: list[TableDef],
        alert: str = "",
    ) -> LandedDdl:
        """Decide by the joined definition. `change`: the table (before, after); `was`: all tables before."""
        old, new = (self._naming.map_definition(table) if table is not None else None for table in change)
        now = self._tables.list_sources(next(table for table in change if table is not None))
        before, after = ([self._naming.map_definition(table) for table in tables] for tables in (was, now))
        try:
            # Join under the source's names first, so that a conflict's message shows those.
            for tables in (was, now):
                join_tables(tuple(tables))
            joined = join_change(SharedChange(old, new, before, after), case.ddl.query)
        except (Conflict, SchemaError) as error:
            raise self._build_unmergeable_error(case, f"shard-mode = optimistic: {error}") from None
        if joined.sql == "":
            what = alert or "the target has the shape that all its tables need"
            return self._skip(case, f"shared table: {what}", NO_CHANGE, alert)
        if not self._rules.copies_ddl:
            return self._skip(case, SYNC_DDL, joined.sides)
        if joined.sql is None:
            applied = self._apply(case, sides)
            return replace(applied, before=joined.sides[0], after=joined.sides[1])
        made = self._decide(case, "apply", "", joined.sql, joined.sides, alert)
        return replace(made, action=Action.MULTI_SCHEMA_CHANGE)

    def _describe_left_columns(self, removed: TableDef, was: list[TableDef]) -> str:
        """What to do about columns that only `removed` had. `was`: all tables before its removal.

        They are not dropped here, because the removed table's rows stay and would lose their values.
        """
        before, after = find_widest(was), find_widest(self._tables.list_sources(removed))
        if before is None or after is None:
            return ""
        names = [column.name for column in before.columns if after.find_column(column.name) is None]
        if not names:
            return ""
        return (
            f", and so do the columns that only it had ({', '.join(names)}): drop them at the target, or keep them with"
            " `preserve`; until then the next window is refused"
        )

    def _judge_creation(self, case: Case, table: TableDef) -> LandedDdl:
        others = [each for each in self._tables.list_sources(table) if each.id != table.id]
        known = find_widest(others)
        if known is not None and RowLayout(table).holds(RowLayout(known)) and RowLayout(known) != RowLayout(table):
            return self._widen(case, known, table)
        if known is None or not RowLayout(known).holds(RowLayout(table)):
            raise self._build_unlike_error(case, describe_other_shape(known or others[0], table), [*others, table])
        return self._skip(case, f"shared table: {format_table_name(others[0])} already created it", NO_CHANGE)

    def _widen(self, case: Case, known: TableDef, table: TableDef) -> LandedDdl:
        """Widen the target to a new table, loaded after DDL that the others lack; theirs then does not run again."""
        before, wider = self._naming.map_definition(known), self._naming.map_definition(table)
        after = extend_known(before, wider)
        sql = self._write_widening(case, describe_other_shape(known, table), before, after)
        sides = DdlSide((), (before,)), DdlSide((), (after,))
        if not self._rules.copies_ddl:
            return self._skip(case, SYNC_DDL, sides)
        return replace(self._decide(case, "apply", "", sql, sides), action=Action.MULTI_SCHEMA_CHANGE)

    def _write_widening(self, case: Case, error: str, before: TableDef, after: TableDef) -> str:
        try:
            return write_alter(before, after)
        except SchemaError as stop:
            raise self._build_unmergeable_error(case, f"{error} ({stop.message})") from None

    def _judge_alteration(
        self, case: Case, old: dict[int, TableDef], new: dict[int, TableDef], neighbours: dict[int, list[TableDef]]
    ) -> LandedDdl | None:
        key = next(iter(new))
        sources = self._tables.list_sources(new[key])
        was, now = find_widest(neighbours.get(key, [])), find_widest(sources)
        if was is None or now is None:
            raise self._build_unlike_error(case, _UNLIKE, sources if now is None else neighbours.get(key, sources))
        try:
            require_same_fill(old[key], new[key], fill_for_others(was, tuple(neighbours[key])))
        except Conflict as conflict:
            raise self._build_unmergeable_error(case, str(conflict)) from None
        if RowLayout(was) == RowLayout(now):
            return self._skip(case, _SAME_SHAPE, NO_CHANGE)
        if RowLayout(was) == RowLayout(old[key]) and RowLayout(now) == RowLayout(new[key]):
            return None
        raise self._build_unmergeable_error(
            case, "the DDL of one table does not bring the target from its shape to the next"
        )

    def follow(self, case: Case) -> None:
        """Update the waiting steps after any DDL, whatever the decision, as it may rename or remove tables.

        Steps released because no table waits for a removed table any more run with this DDL (`take_released`).
        """
        if not self.keeper.locks:
            return
        by_id = {table.id: table for table in case.ddl.after.tables}
        by_name = {fold_pair((table.db, table.name)): table for table in case.ddl.after.tables}
        left: dict[Name, str] = {}
        for old in self._naming.select_replicated(case.ddl.before.tables):
            new = by_id.get(old.id) or by_name.get(fold_pair((old.db, old.name)))
            target = self._find_target_name(old)
            if new is None or not self._rules.keeps(new.db, new.name) or self._find_target_name(new) != target:
                self.keeper.follow_removal(old, case.ddl.since)
                left[target] = format_table_name(old)
            elif self.keeper.is_held(old):
                self.keeper.follow(old, new, case.ddl.since)
        for target in sorted(left):
            self._released += self._release_without(case, target, left[target])

    def _release_without(self, case: Case, target: Name, removed: str) -> list[LandedDdl]:
        """The rows of DDL that can run because the table `removed` no longer belongs to `target`."""
        group = self._tables.find_sources(*target)
        if not group:
            waiting = self.keeper.abandon(target)
            what = f"waiting rows of {format_names(waiting)} never reach {'.'.join(target)}: all its tables are gone"
            return [self._skip(case, f"shard lock: {what}", NO_CHANGE, what)] if waiting else []
        release = self._find_release(case, group, target)
        alert = f"no table waits for {removed} any more: its rows stay at the target"
        return [self._decide_release(case, release, alert)] if release is not None else []

    def narrow(self, case: Case, sides: Sides, neighbours: dict[int, list[TableDef]]) -> None:
        """For DROP DATABASE: narrow targets that other tables share, as for DROP TABLE."""
        if not self._is_optimistic:
            return
        by_target = {
            self._find_target_name(table): table for table in sides[0].tables if self._tables.list_sources(table)
        }
        for dropped in by_target.values():
            what = f"{format_table_name(dropped)} shares its target with other tables: its rows stay there"
            made = self._judge_joined(case, sides, (dropped, None), neighbours[dropped.id], what)
            if made.opens_segment:
                target = made.after.tables[0]
                self._released.append(replace(made, db=target.db, table=target.name))

    def take_released(self) -> list[LandedDdl]:
        """Return, and forget, the rows of DDL that run after the judged one because of it."""
        rows, self._released = self._released, []
        return rows

    def start(self, lo: int, version: int) -> list[LandedDdl]:
        """The rows of DDL that run at the start of the window above `lo`: steps left over from the previous one.

        Raises SchemaError.
        """
        rows: list[LandedDdl] = []
        for target in self.keeper.list_waiting_targets():
            try:
                release = self.keeper.release(self._tables.find_sources(*target), target, lo + 1)
            except Conflict as conflict:
                raise SchemaError(
                    f"held rows cannot be released with their DDL: {conflict}",
                    where={"table": ".".join(target), "window_from": lo},
                    hint="continue without one of the tables: `binlake ddl lock resolve --without`",
                ) from None
            if release is not None:
                rows.append(self._build_leading_row(release, lo, version, release.alert))
        return rows

    def resolve(self, resolution: Resolution, lo: int, version: int) -> LandedDdl | None:
        """The DDL of an operator's resolution, at the start of the window above `lo`; None: it releases nothing.

        Raises ConfigError if rows of a table that is left out would differ at the target.
        """
        target, start = fold_pair(resolution.target), lo + 1
        group = self._tables.find_sources(*target)
        names = {fold_pair(name) for name in resolution.without or self.keeper.find_awaited_tables(group, target)}
        without = [table for table in group if fold_pair((table.db, table.name)) in names]
        if len(without) == len(group):
            return None
        try:
            release = self.keeper.pass_over(group, without, target, start)
        except Conflict as conflict:
            raise ConfigError(
                f"the shard lock cannot be resolved: {conflict}",
                where={"table": ".".join(target), "without": format_names(sorted(names))},
                hint="continue without other tables, or alter them to one definition at the source",
            ) from None
        if release is None:
            return None
        left_out = format_names(sorted(names)) or "leaving out a table"
        alert = f"the shard lock of {'.'.join(target)} was resolved without {left_out}"
        return self._build_leading_row(release, lo, version, alert, resolution.sql)

    def _build_leading_row(self, release: Release, lo: int, version: int, alert: str, own_sql: str = "") -> LandedDdl:
        """The row of a release that no DDL of the window caused. `own_sql`: an operator's statement to run instead."""
        before, after = self._build_sides(release)
        return LandedDdl(
            commit_ts=lo + 1,
            since=lo + 1,
            start_ts=0,
            schema_version=version,
            job_id=0,
            action=Action.MULTI_SCHEMA_CHANGE,
            db=after.tables[0].db,
            table=after.tables[0].name,
            query="",
            sql=own_sql or "; ".join(release.texts),
            decision="replaced" if own_sql else "apply",
            reason="",
            before=before,
            after=after,
            alert=alert,
        )

    def _judge_waiting(
        self, case: Case, sides: Sides, neighbours: dict[int, list[TableDef]], shared: TableDef
    ) -> LandedDdl | None:
        """Decide in mode pessimistic, in which the tables of a target wait for each other."""
        old, new = ({table.id: table for table in side.tables} for side in sides)
        if case.job.type in REMOVES or not new:
            return self._judge_waiting_removal(case, shared)
        if not old:
            return self._judge_waiting_creation(case, shared)
        moved = [
            t for key, t in new.items() if key in old and self._find_target_name(old[key]) != self._find_target_name(t)
        ]
        if moved or set(old) != set(new):
            raise self._build_unmergeable_error(case, "a rename or swap moves a table that shares its target")
        key = next(iter(new))
        if any(RowLayout(one) != RowLayout(neighbours[key][0]) for one in neighbours[key]):
            # The tables already had different shapes when the mode was chosen.
            return self._judge_alteration(case, old, new, neighbours)
        return self._judge_step(case, sides, old[key], new[key])

    def _judge_waiting_removal(self, case: Case, shared: TableDef) -> LandedDdl:
        """Skip the removal. If other tables waited for the removed one, the released steps run instead."""
        if self._released:
            return self._released.pop(0)
        what = f"{format_table_name(shared)} shares its target with other tables: its rows stay there"
        return self._skip(case, f"shared table: {what}", NO_CHANGE, what)

    def _judge_waiting_creation(self, case: Case, table: TableDef) -> LandedDdl:
        """Judge a new table: it must have the target's shape, or a shape that waiting tables have reached."""
        others = [each for each in self._tables.list_sources(table) if each.id != table.id]
        skip = self._skip(case, f"shared table: {format_table_name(others[0])} already created it", NO_CHANGE)
        if RowLayout(others[0]) == RowLayout(table):
            return skip
        steps = self.keeper.find_steps_to(self._find_target_name(table), RowLayout(table))
        if not steps:
            return self._judge_latecomer(case, table, others[0], skip)
        for step in steps:
            before, after = as_table(step.before, table), table if step is steps[-1] else as_table(step.after, table)
            moved = replace(step, source=(table.db, table.name), since=case.ddl.since, before=before, after=after)
            self.keeper.add_step(moved)
        return skip

    def _judge_latecomer(self, case: Case, table: TableDef, known: TableDef, skip: LandedDdl) -> LandedDdl:
        """Judge a new table with another definition than the target's `known`, as a full load creates it.

        If the target can store its rows, it is behind: they are filled until it has made the DDL. Else, with all
        columns of the target, it is ahead: it counts as having made the DDL already, so its rows wait for the others.
        """
        target, error = self._find_target_name(table), describe_other_shape(known, table)
        if RowLayout(known).holds(RowLayout(table)):
            try:
                self.keeper.add_behind(target, table, known, case.ddl.since)
            except Conflict as conflict:
                raise self._build_unmergeable_error(case, f"{error}; {conflict}") from None
            return replace(skip, reason=f"shard lock: {error}; its rows are filled until it has the others' DDL")
        if list_lacking_columns(table, known):
            raise self._build_unmergeable_error(case, error)
        former = number_columns_as(as_table(known, table), table)
        both = self._naming.map_definition(former), self._naming.map_definition(table)
        sql = self._write_widening(case, error, *both)
        hold = Hold(
            target, (table.db, table.name), case.ddl.since, case.ddl.commit_ts, sql, former, table, created=True
        )
        self.keeper.add_step(hold)
        return replace(skip, reason=f"shard lock: {error}; its rows wait until the others have its DDL")

    def _judge_step(self, case: Case, sides: Sides, old: TableDef, new: TableDef) -> LandedDdl:
        try:
            caught_up = self.keeper.has_caught_up(old, new, case.ddl.since)
        except Conflict as conflict:
            raise self._build_unmergeable_error(case, str(conflict)) from None
        if caught_up or (caught_up is None and RowLayout(old) == RowLayout(new)):
            return self._skip(case, _SAME_SHAPE, NO_CHANGE)
        if caught_up is False:
            what = f"{format_table_name(new)} was skipped and now has another shape than the target"
            return self._skip(case, f"shard lock: {what}", NO_CHANGE, what)
        made, target = self._apply(case, sides), self._find_target_name(new)
        if made.decision != "apply":
            return made
        source = (new.db, new.name)
        self.keeper.add_step(Hold(target, source, case.ddl.since, case.ddl.commit_ts, made.sql, old, new))
        group = self._tables.list_sources(new)
        release = self._find_release(case, group, target)
        if release is not None:
            return self._decide_release(case, release, made.alert)
        lacking = self.keeper.find_awaited_tables(group, target)
        if lacking:
            return self._skip(case, f"shard lock: waits for {format_names(lacking)}", NO_CHANGE)
        what = f"the tables of {'.'.join(target)} have reached different shapes: `binlake ddl lock`"
        return self._skip(case, f"shard lock: {what}", NO_CHANGE, what)

    def _find_release(self, case: Case, group: list[TableDef], target: Name) -> Release | None:
        """The release that is possible now, if any. Raises SchemaError if rows would differ at the target."""
        try:
            return self.keeper.release(group, target, case.ddl.since)
        except Conflict as conflict:
            raise self._build_unmergeable_error(case, f"shard-mode = pessimistic: {conflict}") from None

    def _decide_release(self, case: Case, release: Release, alert: str) -> LandedDdl:
        """The row that runs all steps of a release: one row, since a mirror identifies a table's DDL by commit_ts."""
        alert = "; ".join(text for text in (alert, release.alert) if text)
        sides = self._build_sides(release)
        if not self._rules.copies_ddl:
            return self._skip(case, SYNC_DDL, sides, alert)
        made = self._decide(case, "apply", "", "; ".join(release.texts), sides, alert)
        made = replace(made, db=sides[1].tables[0].db, table=sides[1].tables[0].name)
        own_step = len(release.texts) == 1 and release.after.id in {table.id for table in case.ddl.after.tables}
        return made if own_step else replace(made, action=Action.MULTI_SCHEMA_CHANGE)

    def _build_sides(self, release: Release) -> Sides:
        before, after = as_table(release.before, release.after), release.after
        return DdlSide((), (self._naming.map_definition(before),)), DdlSide((), (self._naming.map_definition(after),))
