"""Applies a capture to a target with core functions only, without pumps, lake or Spark: seconds instead of minutes.

Decoding, net changes, statements and DDL mapping use the pipeline's functions in the pipeline's order; only the
transport of rows between them is left out. `binlake.compare`, which reads the target with plain SQL, decides about
equality.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial

from binlake.changes.net import NetChange, RowEvent, compute_net_changes
from binlake.changes.net.net import Row
from binlake.common.sql import Dialect
from binlake.config.servers import TargetSection
from binlake.ddl.ddls import build_window_schemas, plan_ddls
from binlake.ddl.definitions import (
    LandedDdl,
    Segments,
    WindowDefinitions,
    derive_key_defaults,
    use_bytewise_collations,
)
from binlake.dialect import derive_bytewise_table
from binlake.errors import Drift, TargetRefused
from binlake.rows.codec import MutationBatch
from binlake.rows.schema import SchemaState, TableDef, WindowSchemas
from binlake.rules import Rules
from binlake.statements import StatementBatch, TableStatements, build_images_from_rows
from binlake.statements.batch import UNCHECKED
from binlake.target.ddl.execution import execute_step
from binlake.target.definitions.definitions import (
    compare_definitions,
    expect_after_ddl,
    find_remaining_rows,
    read_definitions,
    require_definitions,
)
from binlake.target.session.session import TargetSession
from binlake.window.cuts import build_ddl_batch
from deploy.local.commitlog import RULES, CommitLog, plan_ddl
from deploy.local.handwork import Handworks, plan_handwork


@dataclass
class AppliedCounts:
    """Counts of what was done so far."""

    windows: int = 0
    rows: int = 0
    ddls: int = 0
    skipped: list[str] = field(default_factory=list)
    by_hand: list[str] = field(default_factory=list)


class DirectReplay:
    """Applies `log` to `session` window by window, by `rules`. Raises what finalize would raise."""

    def __init__(
        self,
        log: CommitLog,
        session: TargetSession,
        hands: Handworks | None = None,
        *,
        new_collation: bool = True,
        rules: Rules = RULES,
        dialect: Dialect = "mariadb",
    ) -> None:
        self._dialect: Dialect = dialect
        self._log = log
        self._new_collation = new_collation
        self.hands = plan_handwork(plan_ddl(log)) if hands is None else hands
        self._rules = replace(rules, replacements=self.hands.replaced)
        self._target = TargetSection.model_validate({"db-type": dialect, "tables": self.hands.accepted})
        self._session = session
        self._schema = SchemaState()
        self._lo = 0
        self.applied = AppliedCounts()

    def advance(self, hi: int) -> None:
        """Apply everything up to `hi`, with one window between two stops of the handwork."""
        for stop in (*self.hands.stops, hi):
            if self._lo < stop <= hi:
                self._apply_window(stop)
                self.applied.by_hand += self.hands.run_due(self._session.execute, stop)

    def _apply_window(self, hi: int) -> None:
        lo, self._lo = self._lo, hi
        rows = [row for row in self._log.rows if lo < row[0] <= hi]
        ddls = [ddl for ddl in self._log.ddls if lo < ddl.commit_ts <= hi]
        jobs = [(ts, job) for ts, job in self._log.jobs if lo < ts <= hi]
        schemas = build_window_schemas(self._schema, ddls, jobs, lo)
        ddl_rows = plan_ddls(self._schema, ddls, jobs, self._rules, self.hands.ignored, lo)
        shown = None
        if not self._new_collation:
            ddl_rows, shown = (
                [use_bytewise_collations(ddl, self._dialect) for ddl in ddl_rows],
                partial(derive_bytewise_table, dialect=self._dialect),
            )
        definitions = WindowDefinitions(self._schema, ddl_rows, shown)
        self._apply(
            definitions, ddl_rows, Segments(lo, hi, _starts(ddl_rows)), decode_changes(rows, schemas, self._rules)
        )
        self._schema = self._schema.fold(jobs)
        self.applied.windows += 1

    def _apply(
        self,
        definitions: WindowDefinitions,
        landed: list[LandedDdl],
        segments: Segments,
        events: dict[tuple[str, str], list[RowEvent]],
    ) -> None:
        cuts = [ddl for ddl in landed if ddl.opens_segment]
        for number in range(len(segments.starts) + 1):
            if number:
                self._apply_ddl(cuts[number - 1])
            self._apply_rows(definitions, segments, number, events)

    def _apply_ddl(self, ddl: LandedDdl) -> None:
        if ddl.decision == "skip":
            return
        batch, reason = build_ddl_batch(0, ddl, self._dialect)
        if batch is None:
            self.applied.skipped.append(reason)
            return
        self._session.commit()
        for statement in batch.sql:
            execute_step(self._session, statement)
        expected = expect_after_ddl(ddl.before, ddl.after, self._dialect, ddl.action)
        differences = compare_definitions(
            expected, read_definitions(self._session, expected.names, self._dialect), indexes=True, target=self._target
        )
        if differences := [*differences, *find_remaining_rows(self._session, expected.empty)]:
            raise Drift(f"after the DDL: {'; '.join(differences)}", where={"query": ddl.query})
        self.applied.ddls += 1

    def _apply_rows(
        self,
        definitions: WindowDefinitions,
        segments: Segments,
        number: int,
        events: dict[tuple[str, str], list[RowEvent]],
    ) -> None:
        since, until = segments.find_bounds(number)
        batches: list[StatementBatch] = []
        for (db, name), of_table in events.items():
            own = [event for event in of_table if since <= event.commit_ts < until]
            if not own:
                continue
            table = definitions.require_definition_within(db, name, since, until)
            require_definitions(self._session, self._target, [table])
            net = compute_net_changes(own, table.find_identity(), derive_key_defaults(table))
            batches += _render_batches(table, number, net, self._dialect)
        self._session.begin()
        for batch in sorted(batches, key=lambda batch: batch.phase):
            self._run(batch)
        for batch in batches:
            if batch.verify_sql and self._session.fetch_rows(batch.verify_sql) != [(batch.verify_rows,)]:
                raise Drift("rows that were written are missing", where={"check": batch.verify_sql[:300]})
        self._session.commit()

    def _run(self, batch: StatementBatch) -> None:
        for sql, expected in zip(batch.sql, batch.expect, strict=True):
            affected = self._session.execute(sql)
            if expected not in (UNCHECKED, affected):
                raise TargetRefused(f"{affected} rows instead of {expected}", where={"statement": sql[:300]})
        self.applied.rows += batch.rows


def decode_changes(
    rows: list[tuple[int, int, bytes, int]], schemas: WindowSchemas, rules: Rules = RULES
) -> dict[tuple[str, str], list[RowEvent]]:
    """The row changes of transactions by (db, table), as `merge` decodes them."""
    batch = MutationBatch(
        rules.route,
        invalid_text=rules.invalid_text,
        second_writes=rules.second_writes,
        partition_rows=rules.partition_rows,
    )
    for commit_ts, start_ts, payload, _ in rows:
        batch.add(payload, commit_ts, start_ts, schemas.find_schema_at(commit_ts))
    events: dict[tuple[str, str], list[RowEvent]] = {}
    for row in batch.take().to_pylist(maps_as_pydicts="strict"):
        event = RowEvent(*(row[name] for name in ("commit_ts", "start_ts", "seq", "op", "before", "after")))
        events.setdefault((row["db"], row["table"]), []).append(event)
    return events


def _render_batches(table: TableDef, segment: int, net: list[NetChange], dialect: Dialect) -> Iterator[StatementBatch]:
    out, keyless = TableStatements(table, segment, dialect=dialect), table.find_identity().kind == "row"
    names = [column.name for column in table.row_columns]
    gone, there = [c for c in net if c.op == "delete"], [c for c in net if c.op != "delete"]
    if gone and keyless:
        yield from out.render_image_deletes(
            build_images_from_rows(_select_images(c.before for c in gone), names), [c.copies for c in gone]
        )
    elif gone:
        keys = [column for column in gone[0].before or {}]
        yield from out.render_deletes(build_images_from_rows(_select_images(c.before for c in gone), keys))
    if there and keyless:
        yield from out.render_inserts(
            build_images_from_rows(_select_images(c.after for c in there), names), [c.copies for c in there]
        )
    elif there:
        yield from out.render_writes(build_images_from_rows(_select_images(c.after for c in there), names))


def _select_images(rows: Iterable[Row | None]) -> list[Row]:
    return [row for row in rows if row is not None]


def _starts(landed: list[LandedDdl]) -> tuple[int, ...]:
    return tuple(ddl.since for ddl in landed if ddl.opens_segment)
