"""A preview shows some rows of a table as of a time, all of which belong to the table as of that time."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.examples import spread

from binlake.audit import preview as module
from binlake.audit.audit import Audit
from binlake.audit.preview import preview_rows
from binlake.errors import LostRange, SchemaError
from binlake.lake.paths import LakePaths
from binlake.lake.seek import TimeBudget
from binlake.lake.windowlog import WindowLog
from deploy.local.sample_lake import BASE, S, build_sample


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> LakePaths:
    paths = LakePaths(str(tmp_path_factory.mktemp("lake") / "shop"))
    build_sample(paths)
    return paths


# Ends of windows, and both sides of a transaction, of a DDL, and of the change after it.
MOMENTS = [BASE + 10 * S, BASE + 12 * S, BASE + 12 * S + 1, BASE + 20 * S, BASE + 25 * S - 1, BASE + 25 * S,
           BASE + 26 * S, BASE + 40 * S]  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("table", ["item", "pair", "log"])
@pytest.mark.parametrize("ts", spread(MOMENTS, least=4))
def test_preview_of_all_rows_equals_the_table(shop: LakePaths, table: str, ts: int) -> None:
    # C-07
    audit, log = Audit(shop), WindowLog(shop)
    whole = audit.read_table_as_of("shop", table, ts)
    found = preview_rows(audit, log, ("shop", table), ts, 100, TimeBudget(60))
    assert (found.columns, found.rows, found.more) == (whole.columns, whole.rows, False)


@pytest.mark.long
@pytest.mark.parametrize("ts", MOMENTS[1::3])
def test_short_preview_has_rows_of_the_table_and_says_that_there_are_more(shop: LakePaths, ts: int) -> None:
    audit, log = Audit(shop), WindowLog(shop)
    whole = audit.read_table_as_of("shop", "item", ts)
    found = preview_rows(audit, log, ("SHOP", "Item"), ts, 3, TimeBudget(60))
    assert len(found.rows) == 3
    assert found.more
    assert all(row in whole.rows for row in found.rows)


@pytest.mark.parametrize("ts", [BASE + 10 * S, BASE + 12 * S, BASE + 36 * S])
def test_pages_of_a_preview_are_together_the_table(shop: LakePaths, ts: int) -> None:
    audit, log = Audit(shop), WindowLog(shop)
    whole = preview_rows(audit, log, ("shop", "item"), ts, 100, TimeBudget(60))
    pages = [preview_rows(audit, log, ("shop", "item"), ts, 7, TimeBudget(60), first) for first in range(0, 49, 7)]
    rows = [row for page in pages for row in page.rows]
    assert sorted(map(repr, rows)) == sorted(map(repr, whole.rows))
    assert [page.more for page in pages] == [7 * (number + 1) < len(whole.rows) for number in range(7)]


def test_too_many_changes_since_the_mirror_are_refused_with_a_remedy(
    shop: LakePaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_CHANGES", 1)
    with pytest.raises(LostRange, match="row changes lie between") as refused:
        preview_rows(Audit(shop), WindowLog(shop), ("shop", "item"), BASE + 2 * S, 3, TimeBudget(60))
    assert str(BASE) in refused.value.hint


def test_rows_of_megabytes_make_a_shorter_preview(shop: LakePaths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_BYTES", 1)
    found = preview_rows(Audit(shop), WindowLog(shop), ("shop", "item"), BASE + 10 * S, 30, TimeBudget(60))
    assert (len(found.rows), found.more, found.key_columns) == (16, True, ("id",))


def test_missing_table_and_time_beyond_the_lake_are_distinguished(shop: LakePaths, tmp_path: Path) -> None:
    with pytest.raises(SchemaError):
        preview_rows(Audit(shop), WindowLog(shop), ("shop", "other"), BASE + 2 * S, 3, TimeBudget(60))
    with pytest.raises(LostRange):
        preview_rows(Audit(shop), WindowLog(shop), ("shop", "item"), BASE + 50 * S, 3, TimeBudget(60))
    empty = LakePaths(str(tmp_path))
    with pytest.raises(LostRange):
        preview_rows(Audit(empty), WindowLog(empty), ("shop", "item"), BASE, 3, TimeBudget(60))
