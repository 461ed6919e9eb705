"""What the target alone takes for the final rows of a load, and whether it shows them."""

from __future__ import annotations

import itertools
import threading
import time
from dataclasses import dataclass

import psutil
from sysbench_rows import DB, Writer

from deploy.local.mariadb import MariaDb

CONNECTIONS = 4
ROWS = 1000
CHECKSUM = "SELECT COUNT(*), COALESCE(SUM(CRC32(CONCAT_WS('|', id, k, c, pad))), 0) FROM `{}`.`{}`"


@dataclass(frozen=True)
class Floor:
    """Rows, seconds of wall, CPU seconds of the server and of the client."""

    rows: int
    seconds: float
    server_cpu: float
    client_cpu: float


def check(target: MariaDb, writer: Writer) -> list[str]:
    """What of each table is not as it was written; [] = all is."""
    wrong = []
    with target.connect() as connection, connection.cursor() as cursor:
        for number, name in enumerate(names(writer)):
            cursor.execute(CHECKSUM.format(DB, name))
            shown = tuple(map(int, cursor.fetchone()))
            if shown != writer.expected(number):
                wrong.append(f"{name}: (rows, checksum) {shown} instead of {writer.expected(number)}")
    return wrong


def floor(target: MariaDb, writer: Writer) -> Floor:
    """The rows of `writer` as ready REPLACE texts over CONNECTIONS into the emptied tables."""
    texts = list(_texts(writer))
    with target.connect() as connection, connection.cursor() as cursor:
        for name in names(writer):
            cursor.execute(f"TRUNCATE `{DB}`.`{name}`")
    connections = [target.connect(autocommit=True) for _ in range(CONNECTIONS)]
    server, rows = psutil.Process(target.pid), [0] * CONNECTIONS

    def execute(number: int) -> None:
        with connections[number].cursor() as cursor:
            for text in texts[number::CONNECTIONS]:
                rows[number] += cursor.execute(text)

    threads = [threading.Thread(target=execute, args=(number,)) for number in range(CONNECTIONS)]
    began, used, own = time.perf_counter(), sum(server.cpu_times()[:2]), time.process_time()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = Floor(sum(rows), time.perf_counter() - began, sum(server.cpu_times()[:2]) - used, time.process_time() - own)
    for connection in connections:
        connection.close()
    if found.rows != sum(table.count for table in writer.tables):
        raise SystemExit(f"the floor wrote {found.rows} rows")
    return found


def names(writer: Writer) -> list[str]:
    """The tables of a load."""
    return [f"sbtest{number + 1}" for number in range(len(writer.tables))]


def _texts(writer: Writer) -> list[bytes]:
    found = []
    for number, name in enumerate(names(writer)):
        lines = writer.lines(number)
        while rows := ",".join(f"({i},{k},'{c}','{pad}')" for i, k, c, pad in itertools.islice(lines, ROWS)):
            found.append(f"REPLACE INTO `{DB}`.`{name}` (`id`,`k`,`c`,`pad`) VALUES {rows}".encode())
    return found
