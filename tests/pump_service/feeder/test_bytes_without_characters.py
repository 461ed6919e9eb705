"""Bytes that are no character of their column's charset: the full load and the log do the same with them, as
`invalid-text` says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from feeder_helpers import CountingClock
from loading_helpers import DB, DyingPumps, Loaded, committed
from structlog.testing import capture_logs
from support.mariadb import MariaDb, execute
from support.sourcelog import end_of, transactions_until_now

from binlake.errors import SourceRefused
from binlake.mysqlbinlog.charsets import REPLACED, ReplacedTexts
from binlake.mysqlbinlog.rowimage.plain import find_changed_columns
from binlake.mysqlbinlog.rowimage.shape import derive_shape
from binlake.mysqlbinlog.rowimage.transactions import encode_transactions
from binlake.rows.codec.columnblocks import is_column_block, read_column_block
from binlake.rows.schema import TableDef
from binlake.wire import binlog_pb2 as pb

pytestmark = pytest.mark.mariadb

_ROWS = 70
"""Enough to be written together."""


@pytest.fixture(params=["mariadb_source", "mysql"])
def server(request: pytest.FixtureRequest) -> Iterator[MariaDb]:
    yield from _with_database(request.getfixturevalue(request.param))


@pytest.fixture
def source(mariadb_source: MariaDb) -> Iterator[MariaDb]:
    yield from _with_database(mariadb_source)


def _with_database(server: MariaDb) -> Iterator[MariaDb]:
    execute(server, f"CREATE DATABASE {DB}")
    yield server
    execute(server, f"DROP DATABASE {DB}")


def _both_ways(
    server: MariaDb, folder: Path, charset: str, values: str, *, policy: str, key: bool = False
) -> list[bytes]:
    """The rows of a table as its load has them, then as the log has them, unless both refuse them."""
    execute(server, f"CREATE TABLE {DB}.t (id INT PRIMARY KEY, v VARCHAR(20) CHARACTER SET {charset}{' UNIQUE' * key})")
    start = end_of(server)
    execute(server, f"INSERT INTO {DB}.t VALUES {values}")
    pumps = DyingPumps()
    loaded = Loaded(server, folder, pumps, CountingClock(), {"invalid-text": policy}, **{"chunk-rows": 1000})
    with closing(loaded):
        refusal = None
        try:
            loaded.load()
        except SourceRefused as error:
            refusal = error
        changes = [transaction.changes for transaction in transactions_until_now(server, start)]
        find = partial(loaded.catalog.find_definition, "s1")
        encode = partial(encode_transactions, changes, find, 1, invalid_text=loaded.source.invalid_text)
        if refusal is not None:
            with pytest.raises(SourceRefused, match="are not valid") as found:
                encode()
            assert (found.value.message, found.value.where) == (refusal.message, refusal.where)
            raise refusal
        table = loaded.catalog.find_table("s1", DB, "t")
        assert table is not None
        [logged] = _inserts(encode(), table)
        [read] = _inserts([one.prewrite_value for one in committed(pumps)], table)
        return [*read, *logged]


def _inserts(values: list[bytes], table: TableDef) -> list[list[bytes]]:
    """The inserted rows of each mutation; of a block, the texts of each row."""
    parsed = [pb.PrewriteValue.FromString(value) for value in values if value]
    mutations = [mutation for value in parsed for mutation in value.mutations]
    return [[row for entry in mutation.inserted_rows for row in _list_rows(entry, table)] for mutation in mutations]


def _list_rows(entry: bytes, table: TableDef) -> list[bytes]:
    if not is_column_block(entry):
        return [entry]
    columns = [column.to_pylist() for column in read_column_block(entry, table)]
    return ["".join(texts).encode() for texts in zip(*columns, strict=True)]


@pytest.mark.parametrize(
    ("charset", "raw", "text"),
    [("cp1250", "618362", "a?b"), ("cp1250", "E4", "ä"), ("tis620", "83", "\x83"), ("gbk", "D6D0", "中"),
     ("ucs2", "00E4", "ä")],
)  # fmt: skip
def test_a_load_and_the_log_replace_the_same_bytes(
    server: MariaDb, tmp_path: Path, charset: str, raw: str, text: str
) -> None:
    values = ", ".join(f"({n}, X'{raw}')" for n in range(_ROWS))
    before = _count_replaced()
    rows = _both_ways(server, tmp_path, charset, values, policy="replace")
    assert len(rows) == 2 * _ROWS
    assert _count_replaced() - before == (2 * _ROWS if "?" in text else 0)
    assert all(row.endswith(text.encode()) for row in rows)


def _count_replaced() -> int:
    return REPLACED.get_counts().get(f"{DB}.t", 0)


def test_few_of_the_replaced_texts_are_logged() -> None:
    counted = ReplacedTexts()
    with capture_logs() as logged:
        for _ in range(250):
            counted.add("d.a", "v")
        counted.add("d.b", "w")
    assert [(one["table"], one["texts"]) for one in logged] == [("d.a", 1), ("d.a", 10), ("d.a", 100), ("d.b", 1)]
    assert counted.get_counts() == {"d.a": 250, "d.b": 1}


@pytest.mark.parametrize("rows", [1, _ROWS])
def test_a_load_and_the_log_refuse_the_same_bytes(server: MariaDb, tmp_path: Path, rows: int) -> None:
    values = ", ".join(f"({n}, X'618362')" for n in range(rows))
    said = "column v holds bytes that are not valid cp1250: X'83'.*invalid-text"
    with pytest.raises(SourceRefused, match=said) as error:
        _both_ways(server, tmp_path, "cp1250", values, policy="refuse")
    assert error.value.where["table"] == f"{DB}.t"


def test_a_look_for_changed_columns_names_the_table_too(source: MariaDb, tmp_path: Path) -> None:
    execute(source, f"CREATE TABLE {DB}.t (id INT PRIMARY KEY, v VARCHAR(20) CHARACTER SET cp1250)")
    with closing(Loaded(source, tmp_path, DyingPumps(), CountingClock())) as loaded:
        loaded.load()
        start = end_of(source)
        execute(source, f"INSERT INTO {DB}.t VALUES (1, X'83')", f"UPDATE {DB}.t SET id = 2")
        _, [update] = (transaction.changes for transaction in transactions_until_now(source, start))
        table = loaded.catalog.find_definition("s1", update.table)
        assert table is not None
        with pytest.raises(SourceRefused, match="column v holds bytes") as error:
            find_changed_columns(update, derive_shape(update, table))
    assert error.value.where == {"table": f"{DB}.t"}


def test_nothing_is_replaced_in_a_unique_key(server: MariaDb, tmp_path: Path) -> None:
    with pytest.raises(SourceRefused, match="never in a unique key"):
        _both_ways(server, tmp_path, "cp1250", "(1, X'83'), (2, X'98')", policy="replace", key=True)


def test_a_column_of_ascii_may_hold_any_byte(source: MariaDb, tmp_path: Path) -> None:
    rows = _both_ways(source, tmp_path, "ascii", "(1, X'61E462')", policy="replace")
    assert [row[-3:] for row in rows] == [b"a?b", b"a?b"]
