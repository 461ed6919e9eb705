"""Compare a recorded state with a target: table list, columns, types, keys, collations, and rows as a multiset.

Differences are texts for people; the first few of each state are kept. Each exemption is counted
(docs/understand/equality.md).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from pymysql.connections import Connection

from binlake.base.sql import Dialect
from binlake.compare import as_latin1, build_canonical_converter, decode_captured_value, list_exemptions, parse_create
from binlake.errors import WireError
from binlake.testkit.captures.capture import Json, StateAt
from binlake.testkit.captures.rules import CaptureRules
from binlake.testkit.captures.target import TargetView

_MOST_DIFFERENCES = 20
SEQUENCES = "sequence: the target has none"

Row = tuple[str | None, ...]


@dataclass
class Comparison:
    """The result for one state: compared `tables` and `rows`, `exemptions` by kind, and the first `differences`."""

    commit_ts: int
    step: str
    tables: int = 0
    rows: int = 0
    exemptions: Counter[str] = field(default_factory=Counter)
    differences: list[str] = field(default_factory=list)

    @property
    def equal(self) -> bool:
        """True if nothing differs."""
        return not self.differences

    @property
    def first_difference(self) -> str:
        """The first difference, or an empty text."""
        return self.differences[0] if self.differences else ""


def compare_state(
    state: StateAt,
    connection: Connection[Any],
    *,
    dialect: Dialect = "mariadb",
    ignored: Sequence[str] = ("tidb_binlog",),
    new_collation: bool = True,
) -> Comparison:
    """Compare the target of `connection` (see `connect`) with `state`; `ignored`: databases to leave out on the target.

    `new_collation`: the setting of the source cluster (a capture's meta.json has it).

    Raises WireError for an unreadable state, pymysql's errors if the target fails.
    """
    target = TargetView(connection, dialect, ignored)
    result = Comparison(state.commit_ts, state.step)
    present = target.list_tables()
    for difference in _find_differences(state, target, present, CaptureRules(dialect, new_collation), result):
        if len(result.differences) < _MOST_DIFFERENCES:
            result.differences.append(difference)
    return result


def _find_differences(
    state: StateAt, target: TargetView, present: set[tuple[str, str, str]], rules: CaptureRules, result: Comparison
) -> Iterator[str]:
    yield from _compare_lists(state, target, present, result)
    names = {(db, name) for db, name, _ in present}
    for table in state.contents:
        name_pair = (table["schema"], table["name"])
        if table.get("absent"):
            if name_pair in names:
                yield f"{table['table']}: is on the target, although the capture dropped it"
        elif table.get("kind") == "BASE TABLE" and name_pair in names:
            result.tables += 1
            yield from _compare_table(table, target, rules, result)
        elif table.get("kind") == "BASE TABLE" and state.tables is None:
            yield f"{table['table']}: missing on the target"


def _compare_lists(
    state: StateAt, target: TargetView, present: set[tuple[str, str, str]], result: Comparison
) -> Iterator[str]:
    if state.databases is not None:
        found = target.list_databases()
        yield from (f"database {name}: missing on the target" for name in sorted(set(state.databases) - found))
        yield from (f"database {name}: only on the target" for name in sorted(found - set(state.databases)))
    if state.tables is None:
        return
    has_sequences = any(kind == "SEQUENCE" for _, _, kind in present)
    for db, name, kind in sorted(set(state.tables) - present):
        if kind == "SEQUENCE" and not has_sequences:
            result.exemptions[SEQUENCES] += 1
        else:
            yield f"{db}.{name}: {kind.lower()} missing on the target"
    for db, name, kind in sorted(present - set(state.tables)):
        yield f"{db}.{name}: {kind.lower()} only on the target"


def _compare_table(table: Json, target: TargetView, rules: CaptureRules, result: Comparison) -> Iterator[str]:
    expected = parse_create(table["create"], table["types"])
    found = target.read_structure(table["schema"], table["name"])
    shape_differences = list(rules.find_differences(expected, found, result.exemptions))
    yield from (f"{table['table']}: {text}" for text in shape_differences)
    names = [column.name for column in expected.columns]
    if names != [column.name for column in found.columns]:
        # Rows of different columns cannot be compared; the difference of the columns is reported above.
        return
    yield from _compare_rows(table, target, rules.dialect, result)


def _compare_rows(table: Json, target: TargetView, dialect: Dialect, result: Comparison) -> Iterator[str]:
    columns, types = table["columns"], table["types"]
    rules = [build_canonical_converter(kind) for kind in types]
    expected = Counter(_read_expected_rows(table, rules, dialect, result))
    seen: Counter[Row] = Counter()
    for raw in target.read_rows(table["schema"], table["name"], columns, types):
        seen[tuple(rule(value) for rule, value in zip(rules, raw, strict=True))] += 1
    result.rows += expected.total()
    missing, extra = expected - seen, seen - expected
    if missing or extra:
        yield f"{table['table']}: {_describe_differences(columns, table.get('order_by') or columns, missing, extra)}"


def _read_expected_rows(table: Json, rules: Sequence[object], dialect: Dialect, result: Comparison) -> Iterator[Row]:
    for row in table["rows"]:
        if len(row) != len(rules):
            raise WireError("a row of a state has another number of columns", where={"table": table["table"]})
        raw = [decode_captured_value(value) for value in row]
        for kind, value in zip(table["types"], raw, strict=True):
            if value is not None:
                result.exemptions.update(list_exemptions(kind, value, dialect))
        texts = map(as_latin1, table["types"], raw)
        yield tuple(rule(value) for rule, value in zip(rules, texts, strict=True))  # type: ignore[operator]


def _describe_differences(
    columns: Sequence[str], key: Sequence[str], missing: Counter[Row], extra: Counter[Row]
) -> str:
    head = f"{missing.total()} rows missing, {extra.total()} too many; "
    at = [columns.index(name) for name in key if name in columns]
    if missing:
        first = min(missing, key=_sort_key)
        other = next((row for row in extra if [row[n] for n in at] == [first[n] for n in at]), None)
        if other is not None:
            where = ", ".join(f"{columns[n]}={_shorten(first[n])}" for n in at)
            cells = [f"{c}: {_shorten(t)} instead of {_shorten(e)}" for c, e, t in zip(columns, first, other) if e != t]  # noqa: B905
            return head + f"first at {where}: " + ", ".join(cells)
        return head + "first missing: " + _describe_row(columns, first)
    return head + "first too many: " + _describe_row(columns, min(extra, key=_sort_key))


def _describe_row(columns: Sequence[str], row: Row) -> str:
    return ", ".join(f"{name}={_shorten(value)}" for name, value in zip(columns, row, strict=True))


def _shorten(value: str | None) -> str:
    if value is None:
        return "NULL"
    return repr(value if len(value) <= 60 else f"{value[:57]}...")


def _sort_key(row: Row) -> tuple[tuple[bool, str], ...]:
    return tuple((value is not None, value or "") for value in row)
