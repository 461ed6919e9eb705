"""What the target alone takes for the final rows of a load, and whether it shows them."""

from __future__ import annotations

import itertools
import threading
import time
from dataclasses import dataclass

import psutil
from pymysql.cursors import SSCursor
from sysbench_rows import DB, Writer

from deploy.local.mariadb import MariaDb

CONNECTIONS = 4
ROWS = 1000


@dataclass(frozen=True)
class Floor:
    """Rows, seconds of wall, CPU seconds of the server and of the client."""

    rows: int
    seconds: float
    server_cpu: float
    client_cpu: float


def check_rows(target: MariaDb, writer: Writer) -> list[str]:
    """What of each table is not as it was written, row by row; [] = all is."""
    wrong = []
    with target.connect() as connection, connection.cursor(SSCursor) as cursor:
        for number, name in enumerate(names(writer)):
            cursor.execute(f"SELECT id, k, c, pad FROM `{DB}`.`{name}` ORDER BY id")
            rows = itertools.zip_longest(iter(cursor.fetchone, None), writer.lines(number))
            if differing := [pair for pair in rows if pair[0] != pair[1]]:
                wrong.append(f"{name}: {len(differing):,} rows, as {differing[0][0]} instead of {differing[0][1]}")
    return wrong


def measure_floor(target: MariaDb, writer: Writer) -> Floor:
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
