"""Plans the DDL of a window in commit order: which are applied or skipped, by which rule, and their segments.

An applied DDL opens a segment for the sinks. So does a DDL that `filter.ignore-txn-commit-ts` leaves to the operator. A
skipped DDL still changes how later rows are decoded. An injected statement, which only the target runs, opens a segment
before its commit_ts (U-15); the source does not have it, so no definition changes and no row is decoded differently.

Filters and routes judge each DDL: whether it runs on the target, with which text, and its effect there. Every name is
judged, old and new (R-28). A DDL that would remove rows of other source tables from a shared target never runs (R-15).
A DDL that is left out unexpectedly gets an alert.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from binlake.ddl.deciding import NO_CHANGE, NOTHING, Case, Decider, Sides, Spelling
from binlake.ddl.definitions import EVENTS, EXTRACT, FILTERED, IGNORED, RENAMED_IN, SYNC_DDL, LandedDdl
from binlake.ddl.shardlocks import Locks, Resolution
from binlake.ddl.sharedddl import REMOVES, SharedJudge
from binlake.ddl.targets import Naming, TargetTables
from binlake.dialect.replacement import Injection
from binlake.errors import ConfigError, SchemaError
from binlake.rows.schema import Action, DdlJob, SchemaState, TableDef, WindowDdl, WindowSchemas, sort_ddls
from binlake.rows.schema.forms import fold_name
from binlake.rows.schema.job import SourceSession
from binlake.rows.schema.state import DdlSide, find_touched
from binlake.rules import Rules
from binlake.statements.literal import quote_name

RENAMED_OUT = "renamed out of the filter"
_RENAMED_IN_ALERT = (
    "copy the table's state at this commit_ts to the target, then name the commit_ts in filter.ignore-txn-commit-ts"
)

_NAMES_TABLE = frozenset({
    Action.CREATE_TABLE, Action.CREATE_TABLES, Action.CREATE_VIEW, Action.CREATE_SEQUENCE, Action.RENAME_TABLE,
    Action.RENAME_TABLES,
})  # fmt: skip
"""DDL that gives a table a name, possibly in another database."""
_EMPTIES = frozenset({Action.TRUNCATE_TABLE, Action.TRUNCATE_PARTITION, Action.DROP_PARTITION})
_ALERT = "the target runs a statement of ddl-injection before the changes at this commit_ts"


class Judge(Decider):
    """Judges the DDL of a window in commit order. `tables`: the target's at the window's start; updated by each DDL."""

    def __init__(
        self, naming: Naming, tables: TargetTables, ignored: Collection[int], locks: Locks | None = None
    ) -> None:
        super().__init__(naming)
        self._tables = tables
        self.shared = SharedJudge(naming, tables, locks or Locks())
        self._ignored = ignored

    def judge(self, case: Case) -> LandedDdl:
        """The row with the decision on `case.ddl`, with the target's names.

        Raises SchemaError (a shard's DDL that cannot be merged), ConfigError, Permanent.
        """
        neighbours = self._tables.list_neighbours(case.ddl.before.tables)
        self._tables.change(case.ddl.before, case.ddl.after)
        self.shared.follow(case)
        sides = self._select_replicated_sides(case)
        if sides is None:
            return self._skip(case, FILTERED, self._choose_sides_when_filtered(case))
        shared = self._find_shared(case, sides, neighbours)
        if case.ddl.commit_ts in self._ignored or case.ddl.commit_ts in self._rules.replacements:
            return self._leave_to_operator(
                case, self._derive_sides_after_manual_change(sides) if shared else self._map_sides_to_target(sides)
            )
        if not self._passes_event_filter(case):
            removes = case.job.type in REMOVES
            if case.job.type in _EMPTIES:
                for table in sides[0].tables:
                    self._rules.require_one_key(table, {"rows by DDL"})
            return self._skip(case, EVENTS, NO_CHANGE if removes or shared else self._map_sides_to_target(sides))
        verdict = (
            self._judge_rename_across_filter(case, sides, shared)
            or self._judge_shared_database(case, sides, neighbours)
            or self._judge_rename_in_place(case, sides)
        )
        if verdict is None and shared is not None:
            verdict = self.shared.judge(case, sides, neighbours, shared)
        if verdict is not None:
            return verdict
        if not self._rules.copies_ddl:
            return self._skip(case, SYNC_DDL, self._map_sides_to_target(sides))
        if self._has_extracts(sides) and case.job.type in (Action.CREATE_TABLE, Action.CREATE_TABLES):
            return self._skip(case, EXTRACT, self._map_sides_to_target(sides), "create the table at the target by hand")
        return self._create_missing_database(case, self._apply(case, sides))

    def _create_missing_database(self, case: Case, decided: LandedDdl) -> LandedDdl:
        """`decided`, which first creates its database if no CREATE DATABASE of the source is routed to it.

        So it is when a route has a table-pattern: it is no rule for the database.
        """
        if not self._rules.routes or decided.decision != "apply" or case.job.type not in _NAMES_TABLE:
            return decided
        wanted = dict.fromkeys(table.db for table in decided.after.tables)
        missing = [db for db in wanted if not self._tables.is_database_made(db)]
        creates = "".join(f"CREATE DATABASE IF NOT EXISTS {quote_name(db)}; " for db in missing)
        return replace(decided, sql=creates + decided.sql)

    def _select_replicated_sides(self, case: Case) -> Sides | None:
        """The definitions without tables that a filter leaves out; None if none remain."""
        before, after = (self._naming.select_replicated(side.tables) for side in (case.ddl.before, case.ddl.after))
        if case.on_database or not (case.ddl.before.tables or case.ddl.after.tables):
            if not before and not after and not self._rules.keeps(*self._build_rule_name(case)):
                return None
        elif not before and not after:
            return None
        return DdlSide(case.ddl.before.databases, tuple(before)), DdlSide(case.ddl.after.databases, tuple(after))

    def _choose_sides_when_filtered(self, case: Case) -> Sides:
        # With routes, another table of the target may have the source's name.
        return NO_CHANGE if self._rules.routes else (case.ddl.before, case.ddl.after)

    def _passes_event_filter(self, case: Case) -> bool:
        """Whether the DDL passes the event filter. One passing name is enough; a rename is judged by its old name."""
        if case.on_database:
            return self._rules.events.passes_ddl(case.name[0], "", case.job.type, case.ddl.query)
        tables = self._naming.select_replicated(case.ddl.before.tables) or self._naming.select_replicated(
            case.ddl.after.tables
        )
        names = [(table.db, table.name) for table in tables] or [case.name]
        return any(self._rules.events.passes_ddl(*name, case.job.type, case.ddl.query) for name in names)

    def _judge_rename_across_filter(self, case: Case, sides: Sides, shared: TableDef | None) -> LandedDdl | None:
        """Judge a rename of which only one name is replicated; None for another DDL."""
        if case.job.type not in (Action.RENAME_TABLE, Action.RENAME_TABLES):
            return None
        old, new = ({table.id for table in side.tables} for side in sides)
        if old & new:
            return None
        removed = sides[0].tables
        if old and shared is None and self._is_dropped_when_renamed_out(removed):
            at_target = self._map_sides_to_target((sides[0], NOTHING))
            judged = self._decide(case, "apply", "", self._write_drop(removed), at_target)
            return replace(judged, db=at_target[0].tables[0].db, table=at_target[0].tables[0].name)
        if old:
            return self._skip(
                case, RENAMED_OUT, self._map_sides_to_target(sides), "its table stays at the target unchanged"
            )
        why = f"{RENAMED_IN}: the target does not have this table's rows, or has outdated ones"
        return self._decide(case, "refused", why, case.ddl.query, self._map_sides_to_target(sides), _RENAMED_IN_ALERT)

    def _judge_rename_in_place(self, case: Case, sides: Sides) -> LandedDdl | None:
        """Judge a rename that keeps the target's name, e.g. `log` to `LOG` under one route; None for other DDL."""
        if case.job.type != Action.RENAME_TABLE or not sides[0].tables:
            return None
        was, now = ([self._naming.map_table(table.db, table.name) for table in side.tables] for side in sides)
        return (
            self._skip(case, "the target's name of the table stays", self._map_sides_to_target(sides))
            if was == now
            else None
        )

    def _judge_shared_database(
        self, case: Case, sides: Sides, neighbours: dict[int, list[TableDef]]
    ) -> LandedDdl | None:
        """Judge a DDL on a database of the target that other databases or tables are routed into too; else None."""
        if not case.on_database or not self._rules.routes:
            return None
        if case.job.type == Action.DROP_SCHEMA:
            self.shared.narrow(case, sides, neighbours)
        target = self._naming.map_database(case.name[0])
        others = sorted(self._tables.find_source_databases(target) - {fold_name(case.job.schema_name)})
        if not others:
            return None
        what = f"{others[0]} goes into the database {target} too"
        alert = what if case.job.type == Action.DROP_SCHEMA else ""
        return self._skip(case, f"shared database: {what}", NO_CHANGE, alert)

    def _find_shared(self, case: Case, sides: Sides, neighbours: dict[int, list[TableDef]]) -> TableDef | None:
        """A table of the DDL that shares its target with others, or None."""
        if not self._rules.routes or case.on_database:
            return None
        groups = [(table, neighbours.get(table.id, [])) for table in sides[0].tables]
        groups += [(table, self._tables.list_sources(table)) for table in sides[1].tables]
        shared = (table for table, group in groups if any(each.id != table.id for each in group))
        # A target's last table, after others were passed over, no longer shares it but may still differ from it.
        return next(shared, None) or next((table for table, _ in groups if self.shared.keeper.is_held(table)), None)

    def _derive_sides_after_manual_change(self, sides: Sides) -> Sides:
        """The result of a manual change at a shared target: the present joined shape of its tables, if any exist."""
        tables = []
        for table in sides[1].tables:
            shape = self._naming.merge([self._naming.map_definition(one) for one in self._tables.list_sources(table)])
            tables.append(replace(shape, id=table.id, raw={**shape.raw, "id": table.id}))
        before, _ = self._map_sides_to_target(sides)
        return (before, DdlSide((), tuple(tables))) if tables else NO_CHANGE

    def _has_extracts(self, sides: Sides) -> bool:
        return any(self._rules.routes.extract_columns(table.db, table.name) for table in sides[1].tables)

    def _leave_to_operator(self, case: Case, sides: Sides) -> LandedDdl:
        sql = self._rules.replacements.get(case.ddl.commit_ts)
        if sql is None:
            return self._skip(case, IGNORED, sides)
        alert = "the target runs the statement of ddl-replacement; the schema history keeps the source's definitions"
        return self._decide(case, "replaced", "", sql, sides, alert)


def build_window_schemas(
    base: SchemaState,
    binlogs: Sequence[WindowDdl],
    jobs: Sequence[tuple[int, DdlJob]],
    lo: int = 0,
) -> WindowSchemas:
    """The schemas of a window above `lo`. `jobs`: its (commit_ts, job) pairs, including jobs without a binlog."""
    return WindowSchemas(base, attach_jobs(binlogs, jobs), lo)


def plan_ddls(
    base: SchemaState,
    binlogs: Sequence[WindowDdl],
    jobs: Sequence[tuple[int, DdlJob]],
    rules: Rules,
    ignored: Collection[int] = (),
    lo: int = 0,
) -> list[LandedDdl]:
    """The rows of `ddl` for a window whose schema at lo is `base`. `ignored`: commit_ts skipped by configuration.

    They are in the order in which sinks get them, and each row cuts the window for the sinks. Raises SchemaError,
    ConfigError.
    """
    return plan_locked_ddls(base, binlogs, jobs, rules, ignored, lo)[0]


def plan_locked_ddls(
    base: SchemaState,
    binlogs: Sequence[WindowDdl],
    jobs: Sequence[tuple[int, DdlJob]],
    rules: Rules,
    ignored: Collection[int] = (),
    lo: int = 0,
    before: Locks | None = None,
    resolutions: Collection[Resolution] = (),
) -> tuple[list[LandedDdl], Locks]:
    """As `plan_ddls`, plus the window's holds of tables that share a target. `before`: their holds at lo.

    `resolutions`: an operator's commands at lo.
    """
    if not (binlogs or jobs or before or resolutions):
        return [], Locks()
    naming, locks = Naming(rules), before or Locks()
    judge = Judge(naming, TargetTables(base, naming, locks.list_definitions_at(lo)), ignored, locks)
    resolved = [judge.shared.resolve(resolution, lo, base.version) for resolution in resolutions]
    started = [*(row for row in resolved if row is not None), *judge.shared.start(lo, base.version)]
    planned = [replace(row, segment=n) for n, row in enumerate(started, 1)]
    state, segment = base, len(planned)
    for ddl in sort_ddls(lo, attach_jobs(binlogs, jobs)):
        job = ddl.job if ddl.kind == "ddl" else None
        after = state if job is None else state.follow(job, ddl.commit_ts, base.version)
        names = Spelling(state, after, naming)
        decided = _decide(ddl, _build_source_row(ddl, lo, find_touched(state, after), names), names, judge)
        session = replace(_read_session(ddl, rules), guessed=rules.invalid_text == "latin1")
        for row in (decided, *judge.shared.take_released()):
            segment += row.opens_segment
            planned.append(replace(row, segment=segment, after=replace(row.after, session=session)))
        state = after
    return planned, judge.shared.keeper.locks


def _build_source_row(ddl: WindowDdl, lo: int, sides: tuple[DdlSide, DdlSide], names: Spelling) -> LandedDdl:
    """The row of `ddl` with the source's names, text and definitions, before the decision."""
    job = ddl.job
    db, table = names.spell_source_table(job.schema_name, job.table_name) if job else ("", "")
    return LandedDdl(
        commit_ts=ddl.commit_ts,
        since=ddl.compute_since_above(lo),
        start_ts=ddl.start_ts,
        schema_version=job.schema_version if job else 0,
        job_id=ddl.job_id,
        action=job.type if job else 0,
        db=db,
        table=table,
        query=ddl.query,
        sql=ddl.query,
        decision="apply",
        reason="",
        before=sides[0],
        after=sides[1],
    )


def _read_session(ddl: WindowDdl, rules: Rules) -> SourceSession:
    return SourceSession.of(ddl.job, ddl.commit_ts, rules.zone) if ddl.job is not None else SourceSession()


def require_replacements_used(planned: Iterable[LandedDdl], replacements: Iterable[int], lo: int, hi: int) -> None:
    """Require that each replacement in the window (lo, hi] replaces a DDL that would have run. Raises ConfigError."""
    ddls: dict[int, list[LandedDdl]] = {}
    for ddl in planned:
        ddls.setdefault(ddl.commit_ts, []).append(ddl)
    for commit_ts in replacements:
        at_ts = ddls.get(commit_ts, [])
        if lo < commit_ts <= hi and all(ddl.decision != "replaced" for ddl in at_ts):
            raise ConfigError(
                "ddl-replacement names a commit_ts at which no DDL would run on the target",
                where={"commit_ts": commit_ts, "reason": at_ts[0].reason if at_ts else "there is no DDL"},
                hint="the table `ddl` has the commit_ts of each DDL",
            )


def attach_jobs(binlogs: Sequence[WindowDdl], jobs: Sequence[tuple[int, DdlJob]]) -> list[WindowDdl]:
    """The DDL of a window in commit order: `binlogs` with their jobs, and the `jobs` without a binlog.

    Such a job keeps the commit_ts that land assigned to it, after the DDL of that commit_ts. Raises SchemaError.
    """
    for commit_ts, job in jobs:
        _refuse_flashback(commit_ts, job)
    by_id = {job.id: job for _, job in jobs}
    named = {binlog.job_id for binlog in binlogs}
    ddls = [replace(binlog, job=by_id.get(binlog.job_id)) for binlog in binlogs]
    ddls += [WindowDdl.without_binlog(job, ts) for ts, job in jobs if job.id not in named]
    return sorted(ddls, key=lambda ddl: (ddl.commit_ts, not ddl.logged))


def _refuse_flashback(commit_ts: int, job: DdlJob) -> None:
    if job.took_effect and job.type == Action.FLASHBACK_CLUSTER:
        raise SchemaError(
            "FLASHBACK CLUSTER reverted the source's rows without a binlog",
            where={"commit_ts": commit_ts, "job_id": job.id, "query": job.query[:200]},
            hint="start a new replication from a fresh copy of the source, with initial-commit-ts at or above this",
        )


def _decide(ddl: WindowDdl, row: LandedDdl, names: Spelling, judge: Judge) -> LandedDdl:
    reason = _explain_never_applied(ddl)
    if reason or ddl.job is None:
        undone = ddl.job is not None and not ddl.job.took_effect
        before, after = NO_CHANGE if undone else (row.before, row.after)
        return replace(row, decision="skip", reason=reason, before=before, after=after)
    judged = judge.judge(Case(row, ddl.job, names))
    if not ddl.logged and judged.reason != FILTERED and judged.decision != "refused":
        return replace(judged, decision="skip", reason="the source logged no binlog for it", sql=ddl.query)
    return judged


def _explain_never_applied(ddl: WindowDdl) -> str:
    """The reason why a DDL never runs on any target; empty = it may run."""
    job = ddl.job
    if ddl.kind == "setval":
        return "pseudo DDL of a sequence"
    if ddl.kind == "delete-only":
        return "delete-only step of DROP COLUMN"
    if job is None or not job.took_effect:
        return "the job was rolled back or cancelled"
    return "" if job.is_supported else f"{job.label} is not replicated"


def add_injections(
    planned: Sequence[LandedDdl], injections: Iterable[Injection], lo: int, hi: int, version: int
) -> list[LandedDdl]:
    """`planned` plus the `injections` in the window (lo, hi]. `version`: the schema version at lo."""
    due = [injection for injection in injections if lo < injection.commit_ts <= hi]
    rows: list[LandedDdl] = []
    for ddl in planned:
        # A DDL that opens a segment may cut the window before its commit_ts. One that does not is no bound.
        while due and due[0].commit_ts <= (ddl.commit_ts if ddl.opens_segment else ddl.since):
            rows.append(_build_row(rows, planned, due.pop(0), version))
        made = sum(each.decision == "injected" for each in rows)
        rows.append(replace(ddl, segment=ddl.segment + made))
    for injection in due:
        rows.append(_build_row(rows, planned, injection, version))
    return rows


def _build_row(
    rows: Sequence[LandedDdl], planned: Sequence[LandedDdl], injection: Injection, version: int
) -> LandedDdl:
    """The row of `injection` after all `rows`, and before rows that run ahead of a later DDL."""
    later = [ddl.since for ddl in planned if ddl.opens_segment and ddl.commit_ts >= injection.commit_ts]
    return LandedDdl(
        commit_ts=injection.commit_ts,
        since=min([injection.commit_ts, *later]),
        start_ts=0,
        schema_version=max([version, *(ddl.schema_version for ddl in rows)]),
        job_id=0,
        action=0,
        db=injection.db,
        table="",
        query="",
        sql=injection.sql,
        decision="injected",
        reason="",
        before=NOTHING,
        after=NOTHING,
        segment=rows[-1].segment + 1 if rows else 1,
        alert=_ALERT,
    )
