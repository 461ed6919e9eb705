"""Paths of a feed's files equal those of TiCDC's storage sink."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.feedmessages import commit_ts

from binlake.feed.files.layout import (
    build_data_folder,
    build_data_path,
    build_index_path,
    build_schema_path,
    format_date,
    parse_data_path,
)

NAMES = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=20)


def test_paths_equal_ticdcs() -> None:
    folder = build_data_folder("test", "table1", 441349361156227074, "2022-01-02")
    assert build_data_path(folder, 5, 6, "csv") == "test/table1/441349361156227074/2022-01-02/CDC000005.csv"
    assert build_index_path(folder) == "test/table1/441349361156227074/2022-01-02/meta/CDC.index"
    schema = build_schema_path("test", "table1", 441349361156227074, 3131721815)
    assert schema == "test/table1/meta/schema_441349361156227074_3131721815.json"
    assert build_schema_path("schema1", "", 4, 5) == "schema1/meta/schema_4_0000000005.json"


@pytest.mark.parametrize(
    ("separator", "date"), [("none", ""), ("year", "2026"), ("month", "2026-01"), ("day", "2026-01-01")]
)
def test_date_is_that_of_the_commit_in_utc(separator: str, date: str) -> None:
    assert format_date(commit_ts(86_399), separator) == date


@given(db=NAMES, table=NAMES, version=st.integers(0, 1 << 63), date=st.sampled_from(["", "2026", "2026-01-01"]))
def test_data_file_path_can_be_parsed_for_any_names(db: str, table: str, version: int, date: str) -> None:
    path = build_data_path(build_data_folder(db, table, version, date), 7, 20, "avro")
    found = parse_data_path(path)
    assert found is not None
    assert (found.db, found.table, found.version, found.date, found.number) == (db, table, version, date, 7)
    assert ".." not in path.split("/")


def test_other_files_are_not_data() -> None:
    for path in ("metadata", "_binlake/plan", "a/b/1/2026-01-01/meta/CDC.index", "a/b/meta/schema_1_0000000001.json"):
        assert parse_data_path(path) is None
