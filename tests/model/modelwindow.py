"""A window of a `Source` as convert writes and finalize reads it: the product's functions without lake and Spark."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from random import Random

from ddlworld import World
from modelsource import Source

from binlake.changes.net import RowEvent, compute_net_changes
from binlake.changes.ordered import ChangeKeys, OrderedChange, OrderedPlan, PlanOptions, RowForms
from binlake.config.servers import TargetSection
from binlake.ddl.ddls import add_injections, build_window_schemas, plan_ddls
from binlake.ddl.definitions import LandedDdl, Segments, WindowDefinitions, derive_key_defaults
from binlake.ddl.targets import Naming, TargetTables
from binlake.errors import ImmutableWindow
from binlake.rows.schema import SchemaState, TableDef
from binlake.rules import Rules
from binlake.statements import (
    BatchLimits,
    Phase,
    StatementBatch,
    TableStatements,
    build_images_from_rows,
    compute_statement_digest,
)
from binlake.target import SegmentPlan
from binlake.target.segments import SegmentContent, WindowPlans
from binlake.window.cuts import build_ddl_batch
from binlake.window.manifest import ApplyManifest
from deploy.local.commitlog import RULES, CommitLog
from deploy.local.direct import decode_changes

NAME, CLUSTER = "model", 6791641053252586769
Events = dict[tuple[str, str], list[RowEvent]]


@dataclass
class Statements:
    """A StatementSource in memory, and the manifest that pins it."""

    plans: list[SegmentPlan]
    written: list[StatementBatch]
    manifest: ApplyManifest = None  # type: ignore[assignment]
    forms: str = "safe"

    def list_segments(self) -> list[SegmentPlan]:
        """Like StatementSource."""
        return self.plans

    def read_batches(self, segment: int, phase: int) -> Iterator[StatementBatch]:
        """Like StatementSource."""
        return (b for b in self.written if (b.segment, b.phase) == (segment, phase))

    def digest(self) -> str:
        """A digest of position, rows and text of every batch, in order."""
        return compute_statement_digest(
            [f"{b.segment} {int(b.phase)} {b.batch} {b.rows} {b.digest}" for b in self.written]
        )

    def checked(self, manifest: ApplyManifest) -> Statements:
        """The manifest check of finalize before it applies. Raises ImmutableWindow."""
        if self.digest() != manifest.statement:
            raise ImmutableWindow("the statements in the lake differ from those that the manifest pins")
        return self


@dataclass
class Converter:
    """Converts windows of `source`. `random` shuffles what arrives in any order in Spark; `ignored`: DDL left out."""

    source: Source | CommitLog | World
    random: Random
    rules: Rules = RULES
    ignored: tuple[int, ...] = ()
    _states: dict[int, SchemaState] = field(default_factory=dict)

    def convert(self, lo: int, hi: int, target: TargetSection, forms: str) -> Statements:
        """The statements of (lo, hi] for `target` in its mode and limits, sealed."""
        base, dialect = self._schema(lo), target.db_type
        lines, events = self.logged(lo, hi)
        cuts = [ddl for ddl in lines if ddl.opens_segment]
        segments = Segments(lo, hi, tuple(ddl.since for ddl in cuts))
        versions = (base.version, self._schema(hi).version)
        plans = WindowPlans(self.definitions(lo, lines), segments, cuts, versions, dialect)
        written = [batch for n, ddl in enumerate(cuts, 1) if (batch := build_ddl_batch(n, ddl, dialect)[0]) is not None]
        make = self._ordered if target.mode == "ordered" else self._net
        statements = Statements([], [*written, *make(plans, events, target, forms == "plain")])
        statements.plans = [
            plans.plan_segment(n, _content(statements, n, target, _touched(events, segments.find_bounds(n))))
            for n in range(len(segments.starts) + 1)
        ]
        return _sealed(statements, segments, forms)

    def logged(self, lo: int, hi: int) -> tuple[list[LandedDdl], Events]:
        """The DDL of (lo, hi] as the lake holds them, and the row changes of each replicated table."""
        source, base = self.source, self._schema(lo)
        rows = [row for row in source.rows if lo < row[0] <= hi]
        ddls = [ddl for ddl in source.ddls if lo < ddl.commit_ts <= hi]
        jobs = [(ts, job) for ts, job in source.jobs if lo < ts <= hi]
        schemas = build_window_schemas(base, ddls, jobs, lo)
        planned = plan_ddls(base, ddls, jobs, self.rules, self.ignored, lo)
        lines = add_injections(planned, self.rules.injections, lo, hi, base.version)
        events = decode_changes(rows, schemas, self.rules)
        for changes in events.values():
            self.random.shuffle(changes)
        return lines, events

    def definitions(self, lo: int, ddls: list[LandedDdl]) -> WindowDefinitions:
        """The definitions of the window after `lo` with `ddls`."""
        return WindowDefinitions(self._targets(lo), ddls)

    def tables(self, ts: int) -> list[TableDef]:
        """The tables of the target at `ts`."""
        return self._targets(ts).list_tables()

    def _targets(self, ts: int) -> TargetTables:
        return TargetTables(self._schema(ts), Naming(self.rules))

    def _schema(self, ts: int) -> SchemaState:
        if ts not in self._states:
            self._states[ts] = SchemaState().fold([(at, job) for at, job in self.source.jobs if at <= ts])
        return self._states[ts]

    def _net(self, plans: WindowPlans, events: Events, target: TargetSection, plain: bool) -> Iterator[StatementBatch]:
        limits = BatchLimits(rows=target.batch_rows)
        for number in range(len(plans.segments.starts) + 1):
            first = {Phase.DELETE: 0, Phase.WRITE: 0}
            since, until = plans.segments.find_bounds(number)
            for (db, name), found in sorted(events.items()):
                own = [event for event in found if since <= event.commit_ts < until]
                if not own:
                    continue
                table = plans.definitions.require_definition_within(db, name, since, until)
                net = compute_net_changes(own, table.find_identity(), derive_key_defaults(table), strict=True)
                for phase in first:
                    out = TableStatements(
                        table,
                        number,
                        dialect=target.db_type,
                        limits=limits,
                        first_batch=first[phase],
                        plain=plain,
                        alike=True,
                    )
                    changes = sorted(
                        (c for c in net if (c.op == "delete") == (phase == Phase.DELETE)), key=lambda c: c.key
                    )
                    if changes:
                        yield from _batches(out, table, phase, changes)
                    first[phase] = out.next_batch

    def _ordered(
        self, plans: WindowPlans, events: Events, target: TargetSection, plain: bool
    ) -> Iterator[StatementBatch]:
        options = PlanOptions(target.worker_count, BatchLimits(rows=target.batch_rows), target.multiple_rows,
                              target.conflict_strategy, round_rows=12)  # fmt: skip

        @cache
        def writers(number: int, db: str, name: str) -> tuple[RowForms, ChangeKeys]:
            table = plans.definitions.require_definition_within(db, name, *plans.segments.find_bounds(number))
            return RowForms(table, target.db_type), ChangeKeys(table, target.db_type)

        in_order = sorted(
            ((event, name) for name, found in events.items() for event in found), key=lambda e: e[0].position
        )
        for number in range(len(plans.segments.starts) + 1):
            since, until = plans.segments.find_bounds(number)
            plan = OrderedPlan(number, options)
            for event, name in in_order:
                if since <= event.commit_ts < until:
                    forms, keys = writers(number, *name)
                    yield from plan.add(OrderedChange(forms, event, keys.list_keys(event), not plain))
            yield from plan.flush()


def _batches(out: TableStatements, table: TableDef, phase: Phase, changes: list) -> Iterator[StatementBatch]:  # type: ignore[type-arg]
    names, keyless = [column.name for column in table.row_columns], table.find_identity().kind == "row"
    copies = [change.copies for change in changes]
    if phase == Phase.WRITE:
        images = build_images_from_rows([change.after for change in changes], names)
        return out.render_inserts(images, copies) if keyless else out.render_writes(images)
    if keyless:
        return out.render_image_deletes(build_images_from_rows([change.before for change in changes], names), copies)
    return out.render_deletes(
        build_images_from_rows([change.before for change in changes], table.find_identity().columns)
    )


def _touched(events: Events, bounds: tuple[int, int]) -> list[tuple[str, str]]:
    since, until = bounds
    return sorted(name for name, own in events.items() if any(since <= event.commit_ts < until for event in own))


def _content(
    statements: Statements, number: int, target: TargetSection, touched: list[tuple[str, str]]
) -> SegmentContent:
    own = [b for b in statements.written if b.segment == number]
    ddl = next((b for b in own if b.phase == Phase.DDL), None)
    rows = [b for b in own if b.phase != Phase.DDL]
    ordered = any(b.phase == Phase.ORDERED for b in rows)
    tables = touched if ordered else sorted({(b.db, b.table) for b in rows})
    size = sum(len(text) for b in rows for text in b.sql) if target.mode == "auto" else None
    return SegmentContent(tables, sum(b.rows for b in rows), size, ordered, ddl)


def _sealed(statements: Statements, segments: Segments, forms: str) -> Statements:
    lo, hi, cuts = segments.lo, segments.hi, segments.starts
    statements.manifest = ApplyManifest(
        replication=NAME, sink="sql", cluster_id=CLUSTER, lo=lo, hi=hi, config_hash="c", safe_mode=forms,
        definitions="d", change="c", statement=statements.digest(), segments=len(statements.plans),
        rows=sum(b.rows for b in statements.written), schema_version=statements.plans[-1].schema_version,
        windows=(f"{lo}-{hi}",), cuts=cuts,
    )  # fmt: skip
    statements.forms = forms
    return statements


def damaged(statements: Statements) -> Statements:
    """The same batches, each with another text: no check may accept them."""
    written = [
        b if b.phase == Phase.DDL else replace(b, sql=tuple(f"{text} /* changed */" for text in b.sql), digest="0" * 64)
        for b in statements.written
    ]
    return Statements(statements.plans, written, statements.manifest, statements.forms)
