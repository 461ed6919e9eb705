"""`make bench` compares the target with what was drawn row by row: one missing, changed or left over fails it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest
from sysbench_rows import LOADS, Writer
from target_floor import check_rows

from deploy.local.mariadb import MariaDb

Line = tuple[int, int, str, str]


class Shown:
    """A target that shows these rows of each table."""

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


def written() -> tuple[Writer, list[list[Line]]]:
    writer = Writer(LOADS["c"].scaled(0.001))
    writer.block(writer.load.setup(), 0, writer.load.rows)
    return writer, [list(writer.lines(number)) for number in range(writer.load.tables)]


def found(writer: Writer, tables: list[list[Line]]) -> list[str]:
    return check_rows(cast(MariaDb, Shown(tables)), writer)


def test_the_rows_that_were_drawn_are_right() -> None:
    writer, tables = written()
    assert found(writer, tables) == []
    assert sum(map(len, tables)) == writer.load.rows * writer.load.tables


@pytest.mark.parametrize("fault", ["missing", "changed", "left over", "exchanged"])
def test_each_fault_is_found(fault: str) -> None:
    writer, tables = written()
    rows = tables[2]
    first, second = rows[3], rows[4]
    if fault == "missing":
        del rows[-1]
    elif fault == "changed":
        rows[3] = (*first[:3], first[3][:-1] + "x")
    elif fault == "left over":
        rows.append((rows[-1][0] + 1, *first[1:]))
    else:  # equal sums of checksums over the columns, and yet wrong
        rows[3], rows[4] = (first[0], *second[1:]), (second[0], *first[1:])
    [told] = found(writer, tables)
    assert told.startswith(f"sbtest3: {2 if fault == 'exchanged' else 1} rows")
