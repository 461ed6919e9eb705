"""A session at a server, and the rows of a query on it: read in blocks of packets from the connection, not one by one.

A packet is 3 bytes of length, 1 of number, and the row: each value after its length (MySQL internals manual, "Text
Resultset Row"). pymysql reads the columns' descriptions; reading rows with it costs several times as much.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from pymysql.connections import Connection, MySQLResult
from pymysql.constants import COMMAND
from pymysql.err import raise_mysql_exception

from binlake.errors import SourceUnavailable

Link: TypeAlias = "Connection[Any]"

Name = tuple[str, str]
"""(database, table)."""
_HEADER = 4
_LONGEST = 0xFFFFFF
"""A packet of this length continues in the next one."""
_END, _ERROR = 0xFE, 0xFF
_END_LONGEST = 8
_BLOCK = 1 << 20
_NULL = 0xFB


def ask(link: Link, query: str, arguments: Sequence[object] = ()) -> list[tuple[Any, ...]]:
    """All rows of a query. Raises pymysql's errors."""
    with link.cursor() as cursor:
        cursor.execute(query, tuple(arguments) or None)
        return list(cursor.fetchall())


def query_rows(link: Link, query: str) -> Iterator[list[bytes]]:
    """The rows of `query`, many at a time, each as in its packet. The link accepts no other query before the end.

    Raises pymysql's errors if the server refuses or fails, SourceUnavailable if the connection ends.
    """
    link._execute_command(COMMAND.COM_QUERY, query)  # type: ignore[attr-defined]
    result = MySQLResult(link)
    result.init_unbuffered_query()
    # The result must be read to its end before the link accepts the next query.
    result.unbuffered_active = False
    rest, joined = b"", b""
    while True:
        data = rest + _read(link)
        rows, at, joined, over = _split_packets(data, joined)
        if rows:
            yield rows
        if over:
            return
        rest = data[at:]


def read_row_values(row: bytes, count: int) -> list[bytes | None]:
    """The `count` values of a row; None: NULL."""
    values: list[bytes | None] = []
    at = 0
    for _ in range(count):
        size = row[at]
        at += 1
        if size == _NULL:
            values.append(None)
            continue
        if size > _NULL:
            width = (2, 3, 8)[size - 0xFC]
            size = int.from_bytes(row[at : at + width], "little")
            at += width
        values.append(row[at : at + size])
        at += size
    return values


def _read(link: Link) -> bytes:
    try:
        data: bytes = link._rfile.read1(_BLOCK)  # type: ignore[attr-defined]
    except OSError as error:
        raise SourceUnavailable(f"the connection broke inside the rows of a query: {error}") from error
    if not data:
        raise SourceUnavailable("the source ended the connection inside the rows of a query")
    return data


def _split_packets(data: bytes, joined: bytes) -> tuple[list[bytes], int, bytes, bool]:
    """(rows, bytes used, the part so far of a row of several packets, whether the last row was read)."""
    rows: list[bytes] = []
    at, size = 0, len(data)
    while at + _HEADER <= size:
        start = at + _HEADER
        length = data[at] | data[at + 1] << 8 | data[at + 2] << 16
        end = start + length
        if end > size:
            break
        if length == _LONGEST:
            joined += data[start:end]
        elif joined:
            rows.append(joined + data[start:end])
            joined = b""
        elif length <= _END_LONGEST and data[start] == _END:
            return rows, end, b"", True
        elif data[start] == _ERROR:
            raise_mysql_exception(data[start:end])
        else:
            rows.append(data[start:end])
        at = end
    return rows, at, joined, False
