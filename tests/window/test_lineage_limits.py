"""Lineage data is limited in size, survives JSON, and its errors never fail the stage."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from binlake.window.lineage import (
    LINEAGE,
    MOST_COLUMNS,
    MOST_TABLES,
    KnownTable,
    LineageTable,
    build_lineage,
    limit_tables,
)


def wide(table: str, columns: int, sources: int = 1) -> LineageTable:
    found = tuple((f"c{n}", "bigint unsigned") for n in range(columns))
    origins = tuple(KnownTable(f"s{n}", table, found) for n in range(sources))
    return LineageTable(KnownTable("shop", table, found), tuple(name for name, _ in found), origins)


def test_lineage_survives_json() -> None:
    one = wide("item", 2, 2)
    assert LineageTable.from_dict(json.loads(json.dumps(one.to_dict()))) == one


def test_table_has_all_of_its_columns_or_none_but_always_its_name() -> None:
    most = MOST_COLUMNS
    found = limit_tables([wide("a", most - 20), wide("b", 11, 2), wide("c", 10, 2), wide("d", 1)])
    assert [len(one.table.columns) for one in found] == [most - 20, 0, 10, 0]
    assert [len(one.copied) for one in found] == [most - 20, 0, 10, 0]
    assert [len(one.sources) for one in found] == [1, 2, 2, 1]
    assert found[1].sources[0].columns == ()


def test_too_many_tables_are_left_out_entirely() -> None:
    assert len(limit_tables([wide(f"t{n}", 1) for n in range(MOST_TABLES)])) == MOST_TABLES
    assert limit_tables([wide(f"t{n}", 1) for n in range(MOST_TABLES + 1)]) == []
    # Thousands of shards of one table.
    shards, other = limit_tables([wide("t", 1, MOST_TABLES + 1), wide("u", 1)])
    assert (shards.sources, shards.table.columns, len(other.sources)) == ((), (("c0", "bigint unsigned"),), 1)


def test_empty_side_is_left_out_and_inputs_have_only_names() -> None:
    found = build_lineage(read=iter([wide("a", 3)]))[LINEAGE]
    assert list(found) == ["read"]
    assert found["read"][0]["columns"] == []
    assert found["read"][0]["sources"] == [{"db": "s0", "table": "a", "columns": []}]
    assert build_lineage() == {}


def test_error_while_collecting_lineage_is_only_logged() -> None:
    def broken() -> Iterator[LineageTable]:
        yield wide("a", 1)
        raise RuntimeError("no such definition")

    with capture_logs() as logs:
        assert build_lineage(wrote=broken()) == {}
    assert [(one["event"], one["log_level"]) for one in logs] == [("lineage_not_reported", "error")]
    with pytest.raises(KeyboardInterrupt):
        build_lineage(wrote=(interrupted() for _ in range(1)))


def interrupted() -> LineageTable:
    raise KeyboardInterrupt
