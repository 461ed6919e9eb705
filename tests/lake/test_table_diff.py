"""The difference of a table between two moments equals that of its two states, computed row by row."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping

import pytest

from binlake.audit.audit import Audit
from binlake.audit.diff import DiffLimits, RowDifference, diff_table
from binlake.errors import ConfigError, LostRange, SchemaError
from binlake.lake.mutations import Row
from binlake.lake.paths import LakePaths
from binlake.lake.seek import TimeBudget
from deploy.local.sample_lake import BASE, S, build_sample

MOMENTS = [BASE + second * S for second in (0, 2, 11, 13, 24, 27, 36)]
KEYS = {"item": ("id",), "pair": ("n", "code"), "log": ()}
DDL = BASE + 25 * S


@pytest.fixture(scope="module")
def audit(tmp_path_factory: pytest.TempPathFactory) -> Audit:
    paths = LakePaths(str(tmp_path_factory.mktemp("diff") / "lake"))
    build_sample(paths)
    return Audit(paths)


def read_state(audit: Audit, table: str, ts: int) -> list[Row]:
    return [dict(row) for row in audit.read_table_as_of("shop", table, ts).rows]


def compare(table: str, before: list[Row], after: list[Row]) -> Counter[tuple[str, str, str]]:
    """What the two states say: difference and both rows, how often each."""
    if not KEYS[table]:
        old, new = (Counter(map(show, rows)) for rows in (before, after))
        gone = Counter({("removed", row, "None"): count for row, count in (old - new).items()})
        return gone + Counter({("added", "None", row): count for row, count in (new - old).items()})
    by_key = [{tuple(row[name] for name in KEYS[table]): row for row in rows} for rows in (before, after)]
    found: Counter[tuple[str, str, str]] = Counter()
    for key in by_key[0].keys() | by_key[1].keys():
        one, other = by_key[0].get(key), by_key[1].get(key)
        if show(one) != show(other):
            found["added" if one is None else "removed" if other is None else "changed", show(one), show(other)] += 1
    return found


def show(row: Mapping[str, str | None] | None) -> str:
    """A column that did not exist yet is like NULL: it makes no row another one."""
    return str(None if row is None else sorted((name, value) for name, value in row.items() if value is not None))


def count(rows: tuple[RowDifference, ...]) -> Counter[tuple[str, str, str]]:
    found: Counter[tuple[str, str, str]] = Counter()
    for row in rows:
        found[row.kind, show(row.before), show(row.after)] += row.copies
    return found


@pytest.mark.parametrize("table", KEYS)
def test_difference_is_that_of_the_two_states_whatever_the_moments(audit: Audit, table: str) -> None:
    kinds, states = set(), {ts: read_state(audit, table, ts) for ts in MOMENTS}
    for lo, hi in itertools.combinations(MOMENTS, 2):
        found = diff_table(audit, ("shop", table), lo, hi)
        expected = compare(table, states[lo], states[hi])
        assert count(found.rows) == expected, (lo - BASE, hi - BASE)
        assert found.ddls == ((DDL,) if table == "item" and lo < DDL <= hi else ())
        kinds |= {row.kind for row in found.rows}
    # The sample has what each table can show: an item leaves, a pair moves to another key, the log only grows.
    assert kinds == {"item": {"added", "removed", "changed"}, "pair": {"added", "removed"}, "log": {"added"}}[table]


def test_rows_are_sorted_by_key_as_numbers(audit: Audit) -> None:
    found = diff_table(audit, ("SHOP", "Item"), BASE, BASE + 10 * S)
    assert [row.key for row in found.rows] == [f'["{number}"]' for number in range(1, 41)]
    assert found.count() == {"added": 40, "removed": 0, "changed": 0}
    assert found.columns == ("id", "name", "price", "note")


def test_limits_refuse_and_say_what_has_none(audit: Audit) -> None:
    def limits(changes: int = 10**6, rows: int = 10**6) -> DiffLimits:
        return DiffLimits(changes, rows, TimeBudget(60.0))

    name, end = ("shop", "item"), BASE + 10 * S
    assert len(diff_table(audit, name, BASE, end, limits(40)).rows) == 40
    with pytest.raises(LostRange, match="more than 39 row changes") as refused:
        diff_table(audit, name, BASE, end, limits(39))
    assert "binlake audit diff" in refused.value.hint
    assert len(diff_table(audit, name, DDL - 1, BASE + 40 * S, limits(rows=40)).rows) == 2
    with pytest.raises(LostRange, match="more than 39 rows to compare"):
        diff_table(audit, name, DDL - 1, BASE + 40 * S, limits(rows=39))


def test_moments_and_tables_that_the_lake_does_not_have(audit: Audit) -> None:
    name = ("shop", "item")
    with pytest.raises(ConfigError, match="not before"):
        diff_table(audit, name, BASE + S, BASE + S)
    with pytest.raises(LostRange, match="lake ends"):
        diff_table(audit, name, BASE, BASE + 41 * S)
    with pytest.raises(LostRange, match="lake starts"):
        diff_table(audit, name, BASE - 1, BASE + S)
    with pytest.raises(SchemaError):
        diff_table(audit, ("shop", "nothing"), BASE, BASE + S)
