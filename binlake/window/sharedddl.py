"""DDL of tables that share a target with other tables of the source, by `shard-mode` (hazards R-15).

Never does such a DDL cost one table the rows of the others.
"""

from __future__ import annotations

from dataclasses import replace

from binlake.errors import SchemaError
from binlake.rows.schema import Action, TableDef
from binlake.rows.schema.delta import Definitions
from binlake.rows.schema.names import fold_pair
from binlake.window.deciding import NO_CHANGE, Case, Decider, Sides, table_name
from binlake.window.definitions import SYNC_DDL, LandedDdl
from binlake.window.joined import Conflict, join_tables
from binlake.window.optimistic import SharedChange, join_change
from binlake.window.pessimistic import LockKeeper, Release
from binlake.window.shardlocks import Hold, Locks, Resolution, as_table, named
from binlake.window.targets import Naming, RowLayout, TargetTables, find_widest

REMOVES = frozenset(
    {Action.DROP_SCHEMA, Action.DROP_TABLE, Action.DROP_VIEW, Action.DROP_SEQUENCE, Action.TRUNCATE_TABLE}
)
_SAME_SHAPE = "shared table: the target has the shape that all its tables need"


class SharedJudge(Decider):
    """Judges them in commit order; `tables` are the target's and follow along. `locks`: what is held at the start."""

    def __init__(self, naming: Naming, tables: TargetTables, locks: Locks) -> None:
        super().__init__(naming)
        self._tables = tables
        self.keeper = LockKeeper(tables, locks)

    def judge(self, case: Case, kept: Sides, held: dict[int, list[TableDef]], shared: TableDef) -> LandedDdl | None:
        """What to do where other tables of the source share the target; None = it runs as it is."""
        if self._rules.shard_mode == "pessimistic":
            return self._judge_waiting(case, kept, held, shared)
        old, new = ({table.id: table for table in side.tables} for side in kept)
        if case.job.type in REMOVES or not new:
            what = f"{table_name(shared)} shares its target with other tables: its rows stay there"
            gone = old.get(shared.id)
            if self._joins and case.job.type == Action.DROP_TABLE and gone is not None and not new:
                return self._judge_joined(case, kept, (gone, None), held[gone.id], what)
            return self._skip(case, f"shared table: {what}", NO_CHANGE, what)
        if not old:
            others = [other for other in self._tables.sources(shared) if other.id != shared.id]
            if self._joins:
                return self._judge_joined(case, kept, (None, new[shared.id]), others)
            return self._judge_creation(case, shared)
        moved = [t for key, t in new.items() if key in old and self._target(old[key]) != self._target(t)]
        if moved or set(old) != set(new):
            raise self._unmergeable(case, "a rename or swap moves a table whose target has others too")
        if self._joins:
            key = next(iter(new))
            return self._judge_joined(case, kept, (old[key], new[key]), held[key])
        return self._judge_alteration(case, old, new, held)

    @property
    def _joins(self) -> bool:
        return self._rules.shard_mode == "optimistic"

    def _judge_joined(
        self,
        case: Case,
        kept: Sides,
        change: tuple[TableDef | None, TableDef | None],
        was: list[TableDef],
        alert: str = "",
    ) -> LandedDdl:
        """As the joined definition changes by what the DDL makes of one table; `was`: all tables before it."""
        old, new = (self._naming.definition(one) if one is not None else None for one in change)
        now = self._tables.sources(next(one for one in change if one is not None))
        before, after = ([self._naming.definition(one) for one in some] for some in (was, now))
        try:
            # First under the names of the source: a conflict names them.
            for some in (was, now):
                join_tables(tuple(some))
            joined = join_change(SharedChange(old, new, before, after), case.ddl.query)
        except (Conflict, SchemaError) as error:
            raise self._unmergeable(case, f"shard-mode = optimistic: {error}") from None
        if joined.sql == "":
            what = alert or "the target has the shape that all its tables need"
            return self._skip(case, f"shared table: {what}", NO_CHANGE, alert)
        if not self._rules.copies_ddl:
            return self._skip(case, SYNC_DDL, joined.sides)
        if joined.sql is None:
            applied = self._apply(case, kept)
            return replace(applied, before=joined.sides[0], after=joined.sides[1])
        made = self._decide(case, "apply", "", joined.sql, joined.sides, alert)
        return replace(made, action=Action.MULTI_SCHEMA_CHANGE)

    def _judge_creation(self, case: Case, table: TableDef) -> LandedDdl:
        others = [other for other in self._tables.sources(table) if other.id != table.id]
        known = find_widest(others)
        if known is None or not RowLayout(known).holds(RowLayout(table)):
            raise self._unmergeable(case, "a table joins others at the target and has another shape")
        return self._skip(case, f"shared table: {table_name(others[0])} made it already", NO_CHANGE)

    def _judge_alteration(
        self, case: Case, old: dict[int, TableDef], new: dict[int, TableDef], held: dict[int, list[TableDef]]
    ) -> LandedDdl | None:
        key = next(iter(new))
        sources = self._tables.sources(new[key])
        was, now = find_widest(held.get(key, [])), find_widest(sources)
        if was is None or now is None:
            raise self._unmergeable(case, "the tables that share a target differ in more than added columns")
        if RowLayout(was) == RowLayout(now):
            return self._skip(case, _SAME_SHAPE, NO_CHANGE)
        if RowLayout(was) == RowLayout(old[key]) and RowLayout(now) == RowLayout(new[key]):
            return None
        raise self._unmergeable(case, "the DDL of one table does not bring the target from its shape to the next")

    def keep_waiting(self, case: Case) -> None:
        """A table whose DDL wait goes on with what the target has of it, whatever this DDL makes of it.

        Raises SchemaError where it is renamed: what waits is known by its name.
        """
        after = {table.id: table for table in case.ddl.after.tables}
        for old in case.ddl.before.tables:
            new = after.get(old.id)
            if new is None or not self.keeper.is_held(old):
                continue
            if fold_pair((old.db, old.name)) != fold_pair((new.db, new.name)):
                raise self._unmergeable(case, "it renames a table whose rows wait for others (`binlake ddl lock`)")
            self.keeper.follow(old, new)

    def resolve(self, resolution: Resolution, lo: int, version: int) -> LandedDdl | None:
        """The DDL with which an operator goes on, before all of the window behind `lo`; None: it releases nothing."""
        target, place = fold_pair(resolution.target), lo + 1
        group = self._tables.sources_of(*target)
        names = {fold_pair(name) for name in resolution.without or self.keeper.waiting_for(group, target)}
        without = [table for table in group if fold_pair((table.db, table.name)) in names]
        if len(without) == len(group):
            return None
        release = self.keeper.pass_over(group, without, target, place)
        if release is None:
            return None
        before, after = self._sides_of(release)
        table = after.tables[0]
        return LandedDdl(
            commit_ts=place,
            since=place,
            start_ts=0,
            schema_version=version,
            job_id=0,
            action=Action.MULTI_SCHEMA_CHANGE,
            db=table.db,
            table=table.name,
            query="",
            sql=resolution.sql or "; ".join(release.texts),
            decision="replaced" if resolution.sql else "apply",
            reason="",
            before=before,
            after=after,
            alert=f"the shard lock of {table_name(table)} was resolved without {named(sorted(names)) or 'anyone'}",
        )

    def _judge_waiting(
        self, case: Case, kept: Sides, held: dict[int, list[TableDef]], shared: TableDef
    ) -> LandedDdl | None:
        """As the tables of the target follow each other, in mode pessimistic."""
        old, new = ({table.id: table for table in side.tables} for side in kept)
        if case.job.type in REMOVES or not new:
            return self._judge_waiting_removal(case, kept, shared)
        if not old:
            return self._judge_waiting_creation(case, shared)
        moved = [t for key, t in new.items() if key in old and self._target(old[key]) != self._target(t)]
        if moved or set(old) != set(new):
            raise self._unmergeable(case, "a rename or swap moves a table whose target has others too")
        key = next(iter(new))
        if any(RowLayout(one) != RowLayout(held[key][0]) for one in held[key]):
            # They were of several shapes when the mode was chosen.
            return self._judge_alteration(case, old, new, held)
        return self._judge_step(case, kept, old[key], new[key])

    def _judge_waiting_removal(self, case: Case, kept: Sides, shared: TableDef) -> LandedDdl:
        what = f"{table_name(shared)} shares its target with other tables: its rows stay there"
        left = {fold_pair((table.db, table.name)): table for table in kept[1].tables}
        group: list[TableDef] = []
        for table in kept[0].tables:
            again = left.get(fold_pair((table.db, table.name)))
            if again is not None:
                self.keeper.follow(table, again)
            else:
                self.keeper.end((table.db, table.name), case.ddl.since)
            group = self._tables.sources(table)
        release = self.keeper.release(group, self._target(shared), case.ddl.since) if group else None
        if release is None:
            return self._skip(case, f"shared table: {what}", NO_CHANGE, what)
        return self._decide_release(case, release, what)

    def _judge_waiting_creation(self, case: Case, table: TableDef) -> LandedDdl:
        """A table that joins has the shape of the target, or one that others have come to and wait with."""
        others = [other for other in self._tables.sources(table) if other.id != table.id]
        skip = self._skip(case, f"shared table: {table_name(others[0])} made it already", NO_CHANGE)
        if RowLayout(others[0]) == RowLayout(table):
            return skip
        steps = self.keeper.steps_to(self._target(table), RowLayout(table))
        if not steps:
            raise self._unmergeable(case, "a table joins others at the target and has another shape")
        for step in steps:
            before, after = as_table(step.before, table), as_table(step.after, table)
            own = replace(step, source=(table.db, table.name), since=case.ddl.since, before=before, after=after)
            self.keeper.step(own)
        return skip

    def _judge_step(self, case: Case, kept: Sides, old: TableDef, new: TableDef) -> LandedDdl:
        caught_up = self.keeper.catches_up(new, case.ddl.since)
        if caught_up or (caught_up is None and RowLayout(old) == RowLayout(new)):
            if caught_up is None:
                self.keeper.follow(old, new)
            return self._skip(case, _SAME_SHAPE, NO_CHANGE)
        if caught_up is False:
            self.keeper.follow(old, new)
            what = f"{table_name(new)} was passed over and now has another shape than the target"
            return self._skip(case, f"shard lock: {what}", NO_CHANGE, what)
        made, target = self._apply(case, kept), self._target(new)
        if made.decision != "apply":
            return made
        source = (new.db, new.name)
        self.keeper.step(Hold(target, source, case.ddl.since, case.ddl.commit_ts, made.sql, old, new))
        group = self._tables.sources(new)
        release = self.keeper.release(group, target, case.ddl.since)
        if release is not None:
            return self._decide_release(case, release, made.alert)
        lacking = self.keeper.waiting_for(group, target)
        if lacking:
            return self._skip(case, f"shard lock: waits for {named(lacking)}", NO_CHANGE)
        what = f"the tables of {'.'.join(target)} have come to different shapes: `binlake ddl lock`"
        return self._skip(case, f"shard lock: {what}", NO_CHANGE, what)

    def _decide_release(self, case: Case, release: Release, alert: str) -> LandedDdl:
        """The row of a DDL with which steps run."""
        sides = self._sides_of(release)
        if not self._rules.copies_ddl:
            return self._skip(case, SYNC_DDL, sides)
        made = self._decide(case, "apply", "", "; ".join(release.texts), sides, alert)
        own_step = len(release.texts) == 1 and release.after.id in {table.id for table in case.ddl.after.tables}
        return made if own_step else replace(made, action=Action.MULTI_SCHEMA_CHANGE)

    def _sides_of(self, release: Release) -> Sides:
        before, after = as_table(release.before, release.after), release.after
        return Definitions((), (self._naming.definition(before),)), Definitions((), (self._naming.definition(after),))
