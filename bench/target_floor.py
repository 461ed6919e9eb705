"""The floor of the target for the final rows of a load, and the check that it holds them."""

from __future__ import annotations

import itertools
import threading
import time
from dataclasses import dataclass

import psutil
from pymysql.cursors import SSCursor
from sysbench_rows import DB, SysbenchWriter

from deploy.local.mariadb import MariaDb

CONNECTIONS = 4
ROWS = 1000


@dataclass(frozen=True)
class Floor:
    """Rows, wall-clock seconds, and CPU seconds of the server and of the client."""

    rows: int
    seconds: float
    server_cpu: float
    client_cpu: float


def check_rows(target: MariaDb, writer: SysbenchWriter) -> list[str]:
    """Compare each table row by row with the rows written; return a text per table that differs."""
    wrong = []
    with target.connect() as connection, connection.cursor(SSCursor) as cursor:
        for number, name in enumerate(list_table_names(writer)):
            cursor.execute(f"SELECT id, k, c, pad FROM `{DB}`.`{name}` ORDER BY id")
            rows = itertools.zip_longest(iter(cursor.fetchone, None), writer.iterate_rows(number))
            if differing := [pair for pair in rows if pair[0] != pair[1]]:
                wrong.append(
                    f"{name}: {len(differing):,} rows differ, such as {differing[0][0]} instead of {differing[0][1]}"
                )
    return wrong


def measure_floor(target: MariaDb, writer: SysbenchWriter) -> Floor:
    """Empty the tables and write the rows of `writer` as prepared REPLACE statements over CONNECTIONS connections."""
    texts = list(_render_statements(writer))
    with target.connect() as connection, connection.cursor() as cursor:
        for name in list_table_names(writer):
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
    seconds, server_cpu = time.perf_counter() - began, sum(server.cpu_times()[:2]) - used
    floor = Floor(sum(rows), seconds, server_cpu, time.process_time() - own)
    for connection in connections:
        connection.close()
    expected = sum(table.count for table in writer.tables)
    if floor.rows != expected:
        raise SystemExit(f"the floor wrote {floor.rows} rows instead of {expected}")
    return floor


def list_table_names(writer: SysbenchWriter) -> list[str]:
    """Return the names of the load's tables."""
    return [f"sbtest{number + 1}" for number in range(len(writer.tables))]


def _render_statements(writer: SysbenchWriter) -> list[bytes]:
    texts = []
    for number, name in enumerate(list_table_names(writer)):
        lines = writer.iterate_rows(number)
        while rows := ",".join(f"({i},{k},'{c}','{pad}')" for i, k, c, pad in itertools.islice(lines, ROWS)):
            texts.append(f"REPLACE INTO `{DB}`.`{name}` (`id`,`k`,`c`,`pad`) VALUES {rows}".encode())
    return texts
