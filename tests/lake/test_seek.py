"""A bounded search gives the result of a full read page by page, however early it has to stop."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from support.examples import spread

from binlake.audit.audit import Audit
from binlake.errors import OutOfTime
from binlake.lake.mutations import RowVersion, match_keys, match_table, read_changes
from binlake.lake.paths import LakePaths
from binlake.lake.seek import Slice, TimeBudget, find_at_most, find_newest, read_changes_of_transaction
from binlake.rows.schema import mysqltypes as t
from deploy.local.sample_lake import BASE, S, SampleChange, SampleLake, build_sample, build_table

WINDOWS = 12
END = BASE + WINDOWS * S
COLD = match_table("shop", "item") & match_keys(['["1"]'])
HOT = match_table("shop", "item") & match_keys(['["7"]'])


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> LakePaths:
    """One file per window: key 1 changes in the first and the last, key 7 three times in each, twice in one
    transaction.
    """
    paths = LakePaths(str(tmp_path_factory.mktemp("lake")))
    made = SampleLake(paths)
    made.begin(BASE, build_table("item", 101, {"id": t.LONG, "v": t.VARCHAR}, ["id"]))
    choose = random.Random(7)
    for number in range(WINDOWS):
        lo = BASE + number * S
        moments = [lo + choose.randrange(1, S // 2), lo + S - 1]
        found = [_change(7, ts, seq) for ts, seq in zip([*moments, moments[1]], (0, 0, 1), strict=True)]
        found += [_change(1, moments[0], 5)] if number in (0, WINDOWS - 1) else []
        made.add_window(lo, lo + S, found)
    return paths


def _change(key: int, ts: int, seq: int) -> SampleChange:
    row = {"id": str(key), "v": "a"}
    return SampleChange(ts, ts - 1, "item", row, {**row, "v": "b"}, seq)


def read_all_pages(lake: LakePaths, where: ds.Expression, count: int, seconds: float) -> list[Slice]:
    """Page after page, from the newest."""
    pages, upto = [], END
    while True:
        pages.append(find_newest(lake, BASE, upto, where, count, TimeBudget(seconds)))
        if pages[-1].whole:
            return pages
        assert pages[-1].since < upto, "a search must make progress"
        upto = pages[-1].since


@pytest.mark.long
@pytest.mark.parametrize("where", [COLD, HOT], ids=["cold", "hot"])
@pytest.mark.parametrize("count", [2, 5, 100])
@pytest.mark.parametrize("seconds", spread([0.0, 60.0], least=1))
def test_pages_together_are_the_whole_history(
    lake: LakePaths, where: ds.Expression, count: int, seconds: float
) -> None:
    # C-07
    pages = read_all_pages(lake, where, count, seconds)
    found: list[RowVersion] = [change for page in reversed(pages) for change in page.changes]
    assert found == read_changes(lake, BASE, END, where)
    # Changes of one commit_ts stay together, so a page may have one more.
    assert all(len(page.changes) <= count + 1 for page in pages)


@pytest.mark.long
def test_search_that_ran_out_of_time_reports_its_position(lake: LakePaths) -> None:
    first = find_newest(lake, BASE, END, HOT, 100, TimeBudget(0))
    assert not first.whole
    assert BASE < first.since < END - S
    assert first.changes == tuple(read_changes(lake, first.since, END, HOT))


def test_commit_with_too_many_changes_gives_the_first_and_counts_the_rest(tmp_path: Path) -> None:
    made = _build_lake(tmp_path)
    many, old, new = BASE + 5, BASE + 2, BASE + 9
    made.add_window(
        BASE, BASE + S, [_change(7, old, 0), *(_change(7, many, seq) for seq in range(30)), _change(7, new, 0)]
    )
    found = find_newest(made.paths, BASE, BASE + S, HOT, 3, TimeBudget(60), most=10)
    assert [(change.commit_ts, change.seq) for change in found.changes] == [*((many, n) for n in range(9)), (new, 0)]
    assert (found.left, found.since, found.whole) == (21, many - 1, False)
    assert [
        change.commit_ts for change in find_newest(made.paths, BASE, found.since, HOT, 3, TimeBudget(60)).changes
    ] == [old]
    assert len(find_at_most(made.paths, BASE, BASE + S, HOT, 32, TimeBudget(60)).changes) == 32
    refused = find_at_most(made.paths, BASE, BASE + S, HOT, 31, TimeBudget(60))
    assert (refused.changes, refused.whole, refused.late) == ((), False, False)


def test_too_many_changes_are_distinguished_from_a_timeout(lake: LakePaths) -> None:
    assert find_at_most(lake, BASE, END, HOT, 100, TimeBudget(0)).late
    assert not find_at_most(lake, BASE, END, HOT, 2, TimeBudget(60)).late


@pytest.mark.long
def test_files_that_all_span_the_time_do_not_end_a_late_search(tmp_path: Path) -> None:
    made = _build_lake(tmp_path)
    for n in range(1, 11):
        made.add_window(BASE + n - 1, BASE + n, [_change(7, BASE + n, 0), _change(7, BASE + S + n, 0)])
    found = find_newest(made.paths, BASE, BASE + S, HOT, 100, TimeBudget(0))
    assert (len(found.changes), found.whole) == (10, True)
    assert Audit(made.paths).find_transaction(BASE + 500) is None
    with pytest.raises(OutOfTime, match="took too long"):
        Audit(made.paths).find_transaction(BASE + 500, budget=TimeBudget(0))


def test_recreated_lake_is_read_anew(tmp_path: Path) -> None:
    for key in (7, 1):
        shutil.rmtree(tmp_path, ignore_errors=True)
        made = _build_lake(tmp_path)
        made.add_window(BASE, BASE + S, [_change(key, BASE + 1, 0)])
        found = find_newest(made.paths, BASE, BASE + S, match_table("shop", "item"), 5, TimeBudget(60))
        assert [change.key for change in found.changes] == [f'["{key}"]']


def _build_lake(place: Path) -> SampleLake:
    made = SampleLake(LakePaths(str(place)))
    made.begin(BASE, build_table("item", 101, {"id": t.LONG, "v": t.VARCHAR}, ["id"]))
    return made


def test_lake_without_row_changes_has_no_history(tmp_path: Path) -> None:
    assert find_newest(LakePaths(str(tmp_path)), BASE, END, COLD, 10, TimeBudget(1)) == Slice((), BASE, whole=True)
    assert read_changes_of_transaction(LakePaths(str(tmp_path)), BASE, BASE) == ([], 0)


@pytest.mark.long
def test_transaction_is_read_in_parts(tmp_path: Path) -> None:
    paths = LakePaths(str(tmp_path / "shop"))
    build_sample(paths)
    ts = BASE + 12 * S + 1
    audit = Audit(paths)
    whole = audit.find_transaction(ts)
    assert whole is not None
    assert [change.seq for change in whole.changes] == [0, 1, 2]
    part = audit.find_transaction(ts, 1, 1)
    assert part is not None
    assert (part.changes, part.total) == (whole.changes[1:2], 3)
    assert audit.find_transaction(ts, 3, 1) is not None
    by_start = audit.find_transaction(whole.start_ts, 1, 1, TimeBudget(60))
    assert by_start == part
