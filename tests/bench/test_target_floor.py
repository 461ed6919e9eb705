"""`make bench` compares the target row by row with what was generated: one missing, changed or extra row fails it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest
from sysbench_rows import LOADS, SysbenchWriter
from target_floor import check_rows

from deploy.local.mariadb import MariaDb

Line = tuple[int, int, str, str]


class Shown:
    """A target that returns these rows for each table."""

    def __init__(self, tables: list[list[Line]]) -> None:
        self._tables = iter(tables)
        self._rows: Iterator[Line] = iter(())

    @contextmanager
    def connect(self) -> Iterator[Shown]:
        yield self

    @contextmanager
    def cursor(self, *_: Any) -> Iterator[Shown]:
        yield self

    def execute(self, _: str) -> None:
        self._rows = iter(next(self._tables))

    def fetchone(self) -> Line | None:
        return next(self._rows, None)


def write_rows() -> tuple[SysbenchWriter, list[list[Line]]]:
    writer = SysbenchWriter(LOADS["c"].with_scale(0.001))
    writer.build_block(writer.load.list_setup_roles(), 0, writer.load.rows)
    return writer, [list(writer.iterate_rows(number)) for number in range(writer.load.tables)]


def find_differences(writer: SysbenchWriter, tables: list[list[Line]]) -> list[str]:
    return check_rows(cast(MariaDb, Shown(tables)), writer)


def test_generated_rows_are_correct() -> None:
    writer, tables = write_rows()
    assert find_differences(writer, tables) == []
    assert sum(map(len, tables)) == writer.load.rows * writer.load.tables


@pytest.mark.parametrize("fault", ["missing", "changed", "left over", "exchanged"])
def test_each_fault_is_found(fault: str) -> None:
    writer, tables = write_rows()
    rows = tables[2]
    first, second = rows[3], rows[4]
    if fault == "missing":
        del rows[-1]
    elif fault == "changed":
        rows[3] = (*first[:3], first[3][:-1] + "x")
    elif fault == "left over":
        rows.append((rows[-1][0] + 1, *first[1:]))
    else:  # the sums of checksums over the columns are equal, but the rows are wrong
        rows[3], rows[4] = (first[0], *second[1:]), (second[0], *first[1:])
    [told] = find_differences(writer, tables)
    assert told.startswith(f"sbtest3: {2 if fault == 'exchanged' else 1} rows")
