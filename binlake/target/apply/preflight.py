"""Compares source and target tables before the first write: reports refusals, remedies and triggers that fire.

Rules: hazards R-12, R-13; MISSION S4-26, S4-27. Reads only.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

from binlake.common.sql import Dialect
from binlake.config.model import Replication
from binlake.config.servers import TargetSection, TargetTable
from binlake.ddl.definitions import TableShape
from binlake.ddl.targets import TargetTables
from binlake.dialect import derive_bytewise_table, has_target_collation
from binlake.rows.schema import TableDef
from binlake.rows.schema.forms import fold_name, fold_pair
from binlake.target.claim.checkpoint import is_aside
from binlake.target.definitions.definitions import build_drift_error, expect_tables, read_definitions
from binlake.target.definitions.forms import Name, TableForm, build_expected_form
from binlake.target.definitions.structure import (
    StructureDifference,
    compare_structures,
    derive_shape,
    find_option,
    list_refusals,
)
from binlake.target.session.session import TargetSession

Verdict = Literal["alike", "preserve", "partial", "accepted", "coming", "refused", "missing"]

_CASCADES = frozenset({"CASCADE", "SET NULL", "SET DEFAULT"})


@dataclass(frozen=True)
class TableReport:
    """The report on one table of the target.

    `verdict`: `alike`; `preserve`: the target has columns (`own`) or keys that the source lacks, whose values are kept;
    `partial`: the columns `left_out` are not written; `accepted`: it differs as the configuration allows; `coming`: the
    source creates it after the start, and so does a window; `refused`,
    `missing`: nothing can be written. `refusals`: why it is refused; `ways`: what to do; `differences`: all
    differences; `warnings`: notes that refuse nothing.
    """

    db: str
    table: str
    verdict: Verdict
    differences: tuple[str, ...] = ()
    refusals: tuple[str, ...] = ()
    ways: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    own: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """For `--output json`."""
        return asdict(self)


def list_tables(replication: Replication, target_tables: TargetTables) -> list[TableDef]:
    """The replicated tables as the target must have them, sorted by name."""
    tables = target_tables.list_tables()
    target = replication.target
    if target is not None and not replication.source.new_collation:
        tables = [derive_bytewise_table(table, target.db_type) for table in tables]
    return sorted(tables, key=lambda table: (table.db, table.name))


def build_reports(target: TargetSection, tables: list[TableDef], newest: Sequence[TableDef] = ()) -> list[TableReport]:
    """As `run_preflight`, with a session of its own. Raises TargetUnavailable."""
    with closing(TargetSession(target)) as session:
        return run_preflight(session, target, tables, newest)


def run_preflight(
    session: TargetSession, target: TargetSection, tables: Iterable[TableDef], newest: Iterable[TableDef] = ()
) -> list[TableReport]:
    """A report on each of `tables`: definitions of the source with the target's names; `newest`: as they are later.

    Raises TargetRefused.
    """
    later = {fold_pair((table.db, table.name)): {fold_name(one.name) for one in table.columns} for table in newest}
    wanted = [table for table in tables if table.kind == "table"]
    warnings = _read_warnings(session, {table.db for table in wanted})
    expected = expect_tables(wanted, target.db_type)
    actual = read_definitions(session, expected.names, target.db_type)
    reports = []
    for table in wanted:
        name = (table.db, table.name)
        report = _report_table(target, table, actual.tables.get(name), later.get(fold_pair(name), set()))
        found = warnings.get(fold_pair((table.db, table.name)), ())
        reports.append(_with_warnings(report, found) if found else report)
    return reports


def require_fit(reports: Sequence[TableReport], where: dict[str, object]) -> None:
    """Raises Drift when an existing table is refused. A missing table is refused only when it gets rows."""
    found = [f"{r.db}.{r.table}: {text}" for r in reports if r.verdict == "refused" for text in r.refusals]
    if found:
        raise build_drift_error(found, where)


def find_stopping_reports(
    target: TargetSection, reports: Sequence[TableReport], aside: Collection[Name]
) -> list[TableReport]:
    """The `reports` that may stop a window: none of tables that are set `aside` or that finalize will set aside."""
    candidates = [report for report in reports if not is_aside(aside, (report.db, report.table))]
    if target.on_table_error == "stop":
        return candidates
    # finalize itself sets aside tables that differ. Setting a table aside does not help against other refusals.
    return [report for report in candidates if set(report.refusals) - set(report.differences)]


def _report_table(
    target: TargetSection, table: TableDef, actual: TableForm | None, later: Collection[str]
) -> TableReport:
    unequalled = find_missing_collations(table, target.db_type)
    if unequalled:
        lacking = tuple(f"the target has no collation that calls the same texts equal as {name}" for name in unequalled)
        ways = ("change the collation at the source, for example to utf8mb4_bin", _describe_ignoring(table))
        return TableReport(table.db, table.name, "refused", refusals=lacking, ways=ways)
    if actual is None:
        ways = ("create it at the target, or load it with the source's data", _describe_ignoring(table))
        return TableReport(table.db, table.name, "missing", refusals=("the table is missing",), ways=ways)
    return _compare_table(target, table, actual, later)


def _compare_table(target: TargetSection, table: TableDef, actual: TableForm, later: Collection[str]) -> TableReport:
    form = build_expected_form(table, target.db_type)
    option = find_option(target, (table.db, table.name))
    differences = compare_structures(form, actual)
    shape = derive_shape(form, actual, option, target.sync_mode)
    shaped = build_expected_form(shape.apply_to(table), target.db_type) if shape else form
    open_ones = compare_structures(shaped, actual)
    here = {fold_name(column.name) for column in table.columns}
    own = [column.name for column in actual.columns if fold_name(column.name) not in here]
    coming = [name for name in own if fold_name(name) in later]
    accepted = frozenset(option.accept) if option else frozenset()
    refusals = [*list_refusals(open_ones, accepted), *_list_mode_refusals(target, shape)]
    return TableReport(
        table.db,
        table.name,
        _choose_verdict(shape, refusals, any(difference.text in accepted for difference in differences)),
        tuple(difference.text for difference in differences),
        tuple(refusals),
        tuple(
            _list_ways(
                table,
                option,
                [one for one in open_ones if one.text in refusals],
                refusals,
                coming,
                keeps=not own or own != coming,
            )
        ),
        own=shape.own,
        left_out=shape.dropped,
    )


def find_missing_collations(table: TableDef, dialect: Dialect) -> list[str]:
    """The collations of `table` and its columns for which the target has none, by name."""
    names = {table.collate, *(column.collate for column in table.columns)}
    return sorted(name for name in names if name and not has_target_collation(name, dialect))


def _choose_verdict(shape: TableShape, refusals: Sequence[str], accepted: bool) -> Verdict:
    if refusals:
        return "refused"
    if shape.own or shape.lost:
        return "preserve"
    if shape.dropped:
        return "partial"
    return "accepted" if accepted else "alike"


def _list_mode_refusals(target: TargetSection, shape: TableShape) -> list[str]:
    if shape.kept and target.mode == "ordered" and target.safe_mode == "always":
        return ["mode ordered with safe-mode = always would erase the values of the target's own columns"]
    return []


def _list_ways(
    table: TableDef,
    option: TargetTable | None,
    differences: Sequence[StructureDifference],
    refusals: Sequence[str],
    coming: Sequence[str],
    *,
    keeps: bool,
) -> list[str]:
    """What an operator can do, least invasive first. `coming`: columns of the target that the source adds later;
    `keeps`: the target has others of its own, whose values `preserve` would keep."""
    weights = {one.weight for one in differences}
    place = f'[[target.tables]] db-name = "{table.db}", tbl-name = "{table.name}"'
    ways = []
    if coming and refusals:
        names = ", ".join(coming)
        ways.append(f"drop {names} from the target's table: a later DDL of the source adds it, and so does its window")
    if keeps and "preserve" in weights and not (option and option.preserve):
        ways.append(f"keep the target's own values: {place}, preserve = true")
    if "partial" in weights:
        ways.append("leave out the source's columns that the target lacks: target.sync-mode = 2")
    if "fatal" in weights:
        ways.append("alter the target's table to match")
        texts = ", ".join(f'"{one.text}"' for one in differences if one.weight == "fatal")
        ways.append(f"accept it, if you know that no row is lost: {place}, accept = [{texts}]")
    if len(refusals) > len(differences):
        ways.append("target.mode = atomic, parallel or auto; or safe-mode = auto")
    return [*ways, _describe_ignoring(table)] if refusals else []


def _describe_ignoring(table: TableDef) -> str:
    return (
        f'leave it out: [[filter.ignore-table]] with the source\'s name of "{table.db}"."{table.name}" (it affects only'
        f" windows that are not merged yet); or temporarily: `binlake table aside --table {table.db}.{table.name}`"
    )


def _with_warnings(report: TableReport, warnings: Sequence[str]) -> TableReport:
    return TableReport(**{**asdict(report), "warnings": tuple(warnings)})


class _Trigger(NamedTuple):
    name: str
    table: str
    timing: str
    event: str


class _ForeignKey(NamedTuple):
    name: str
    parent: str
    child: str
    on_update: str
    on_delete: str


def _read_warnings(session: TargetSession, databases: Iterable[str]) -> dict[Name, list[str]]:
    warnings: dict[Name, list[str]] = {}
    for db in sorted(databases):
        for table, text in [*_read_trigger_warnings(session, db), *_read_cascade_warnings(session, db)]:
            warnings.setdefault(fold_pair((db, table)), []).append(text)
    return warnings


def _read_trigger_warnings(session: TargetSession, db: str) -> Iterator[tuple[str, str]]:
    """(table, text) of each trigger in `db`."""
    sql = (
        "SELECT TRIGGER_NAME, EVENT_OBJECT_TABLE, ACTION_TIMING, EVENT_MANIPULATION"
        " FROM information_schema.TRIGGERS WHERE EVENT_OBJECT_SCHEMA = %s ORDER BY 1"
    )
    for trigger in session.fetch_records(_Trigger, sql, (db,)):
        when = f"{trigger.timing} {trigger.event}"
        text = f"trigger {trigger.name} ({when}) fires for Binlake's writes; a REPLACE is a DELETE and an INSERT"
        yield trigger.table, text


def _read_cascade_warnings(session: TargetSession, db: str) -> Iterator[tuple[str, str]]:
    """(table, text) of each foreign key on a table of `db` that cascades."""
    sql = (
        "SELECT CONSTRAINT_NAME, REFERENCED_TABLE_NAME, TABLE_NAME, UPDATE_RULE, DELETE_RULE"
        " FROM information_schema.REFERENTIAL_CONSTRAINTS WHERE UNIQUE_CONSTRAINT_SCHEMA = %s ORDER BY 1"
    )
    for key in session.fetch_records(_ForeignKey, sql, (db,)):
        if _CASCADES & {key.on_update.upper(), key.on_delete.upper()}:
            text = f"foreign key {key.name} of {key.child} cascades, but not for our writes (foreign_key_checks = 0)"
            yield key.parent, text
