"""The two sharded MariaDB servers of `make demo-mysql`: a base of rows, continuous writers, and a DDL on each.

The shards have the same table in databases of the same name, with disjoint ids, as in an application sharded by
customer.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import pymysql

from deploy.local.mariadb import MariaDb
from deploy.local.process import ProcessError

DB, TABLE = "shop", "orders"
_BLOCK = 2_000
_PAUSE_S = 0.004
_CREATE = f"""CREATE TABLE `{DB}`.`{TABLE}` (
  id BIGINT NOT NULL PRIMARY KEY, customer INT NOT NULL, state ENUM('new', 'paid', 'sent') NOT NULL,
  total DECIMAL(12,2) NOT NULL, note VARCHAR(60), changed TIMESTAMP(3) NOT NULL, KEY by_customer (customer))"""
_ALTER = f"ALTER TABLE `{DB}`.`{TABLE}` ADD COLUMN channel VARCHAR(10) NOT NULL DEFAULT 'web'"


class ShardServer:
    """One source server below `folder`; `number` and `shards` determine its ids."""

    def __init__(self, folder: Path, number: int, shards: int) -> None:
        self.name = f"shard-{number}"
        self.server = MariaDb(folder / self.name, options=MariaDb.list_source_options(number))
        self._number = number
        self._step = shards
        self._random = Random(number)
        self._next = number
        self._ids: list[int] = []
        self._has_channel = False
        self._stopped = threading.Event()
        self._writer = threading.Thread(target=self._write, name=self.name, daemon=True)
        self._failure: BaseException | None = None
        self.transactions = 0

    def start(self) -> None:
        """Start the server. Raises ProcessError."""
        self.server.start()

    def stop(self) -> None:
        """Stop the writer and the server."""
        self._end_writer()
        self.server.stop()

    def fill(self, rows: int) -> None:
        """Create the table with `rows` rows."""
        with closing(self.server.connect(autocommit=False)) as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE `{DB}`")
            cursor.execute(_CREATE)
            for block in _split_blocks(rows):
                values = [self._build_row(self._take_id()) for _ in range(block)]
                cursor.executemany(f"INSERT INTO `{DB}`.`{TABLE}` VALUES (%s, %s, %s, %s, %s, %s)", values)
                connection.commit()

    def begin_writes(self) -> None:
        """Insert, update and delete rows until `end_writes`, in transactions of one to five rows."""
        self._writer.start()

    def end_writes(self) -> None:
        """Stop the writer. Raises ProcessError if it failed."""
        self._end_writer()
        self.check()

    def check(self) -> None:
        """Raises ProcessError if the writer failed."""
        if self._failure is not None:
            raise ProcessError(f"the writer of {self.name} failed: {self._failure}") from self._failure

    def _end_writer(self) -> None:
        self._stopped.set()
        if self._writer.is_alive():
            self._writer.join()

    def add_column(self) -> None:
        """Run the DDL while the writer continues."""
        with closing(self.server.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(_ALTER)
        self._has_channel = True

    def read_rows(self) -> list[tuple[Any, ...]]:
        """Every row, by id."""
        with closing(self.server.connect()) as connection, connection.cursor() as cursor:
            return read_orders(cursor)

    def read_gtids(self) -> str:
        """The GTIDs in the server's log now."""
        with closing(self.server.connect()) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT @@gtid_binlog_pos")
            return str(cursor.fetchone()[0])

    def _write(self) -> None:
        try:
            with closing(self.server.connect(autocommit=False)) as connection, connection.cursor() as cursor:
                while not self._stopped.wait(_PAUSE_S):
                    for _ in range(self._random.randint(1, 5)):
                        self._change(cursor)
                    connection.commit()
                    self.transactions += 1
        except pymysql.err.MySQLError as error:
            self._failure = error

    def _change(self, cursor: Any) -> None:
        kind, place = self._random.random(), self._random.randrange(len(self._ids))
        if kind < 0.4:
            columns = "id, customer, state, total, note, changed" + (", channel" if self._has_channel else "")
            values = (*self._build_row(self._take_id()), *(("shop",) if self._has_channel else ()))
            marks = ", ".join(["%s"] * len(values))
            cursor.execute(f"INSERT INTO `{DB}`.`{TABLE}` ({columns}) VALUES ({marks})", values)
        elif kind < 0.9:
            change = "state = 'paid', total = total + 1, changed = changed + INTERVAL 1 SECOND"
            cursor.execute(f"UPDATE `{DB}`.`{TABLE}` SET {change} WHERE id = %s", (self._ids[place],))
        else:
            self._ids[place], last = self._ids[-1], self._ids[place]
            self._ids.pop()
            cursor.execute(f"DELETE FROM `{DB}`.`{TABLE}` WHERE id = %s", (last,))

    def _take_id(self) -> int:
        self._next += self._step
        self._ids.append(self._next - self._step)
        return self._next - self._step

    def _build_row(self, row_id: int) -> tuple[Any, ...]:
        note = None if row_id % 7 == 0 else f"Bestellung {row_id} für Köln"
        total = f"{self._random.randrange(10_000_000) / 100:.2f}"
        changed = f"2026-11-23 08:{row_id % 60:02d}:00.{row_id % 1000:03d}"
        return row_id, self._random.randrange(5_000), "new", total, note, changed


def read_orders(cursor: Any) -> list[tuple[Any, ...]]:
    """Every row of the table at that server, by id, with the columns in a fixed order."""
    cursor.execute("SET time_zone = '+00:00'")
    cursor.execute(f"SELECT id, customer, state, total, note, changed, channel FROM `{DB}`.`{TABLE}` ORDER BY id")
    return list(cursor.fetchall())


def _split_blocks(rows: int) -> Iterator[int]:
    yield from [_BLOCK] * (rows // _BLOCK)
    if rows % _BLOCK:
        yield rows % _BLOCK
