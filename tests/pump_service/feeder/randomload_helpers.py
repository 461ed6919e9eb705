"""A random load: tables of each kind of key, a writer that changes them, and a strict replica of what is published."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial

from loading_helpers import DB, SERVER_ID, DyingPumps, Loaded, committed
from support.mariadb import MariaDb, execute
from support.snapshots import images, opened, reader_of

from binlake.mysqlbinlog.rowimage import encode_transactions
from binlake.pump_service.feeder.connection import open_log
from binlake.pump_service.feeder.publisher import Outgoing
from binlake.pump_service.feeder.server import connect, read_log_end
from binlake.rows.codec import decode_transaction, encode_commit_binlog
from binlake.rows.schema import DdlJob, SchemaState
from binlake.wire import binlog_pb2 as pb

TABLES = {
    "number": ("id INT PRIMARY KEY, u INT UNIQUE, v VARCHAR(20)", lambda n: str(n * 3 - 60)),
    "big": ("id BIGINT UNSIGNED PRIMARY KEY, u INT UNIQUE, v VARCHAR(20)", lambda n: str((1 << 63) - 50 + n)),
    "word": (
        "id VARCHAR(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci PRIMARY KEY, u INT UNIQUE, v VARCHAR(20)",
        lambda n: f"'{'äBcÖ'[n % 4]}{n * 7 % 100}'",
    ),
    "latin": (
        "id CHAR(9) CHARACTER SET latin1 COLLATE latin1_german1_ci PRIMARY KEY, u INT UNIQUE, v VARCHAR(20)",
        lambda n: f"'{'éAzß'[n % 4]}''{n}'",
    ),
    "bytes": ("id BINARY(4) PRIMARY KEY, u INT UNIQUE, v VARCHAR(20)", lambda n: f"X'{n * 997 % 250:02X}{n:02X}0000'"),
    "moment": (
        "id TIMESTAMP(2) NOT NULL DEFAULT '2020-01-01', u INT UNIQUE, v VARCHAR(20), PRIMARY KEY (id, u)",
        lambda n: f"'2024-03-31 00:00:00' + INTERVAL {n * 3571} SECOND",
    ),
    "clock": ("id TIME(1) PRIMARY KEY, u INT UNIQUE, v VARCHAR(20)", lambda n: f"SEC_TO_TIME({(n - 30) * 9000})"),
    "keyless": ("id INT, u INT UNIQUE, v VARCHAR(20)", str),
}
"""Columns, and the literal of the key of row `n`."""
_KEYS = 60


@dataclass
class Writer:
    """Changes the source at random."""

    server: MariaDb
    draw: random.Random
    made: list[str] = field(default_factory=list)

    def create(self) -> None:
        for name, (columns, key) in TABLES.items():
            numbers = [n for n in range(_KEYS) if self.draw.random() < 0.6]
            values = ", ".join(f"({key(n)}, {n}, 'first')" for n in numbers)
            execute(self.server, f"CREATE TABLE {DB}.{name} ({columns})", f"INSERT INTO {DB}.{name} VALUES {values}")

    def change(self, times: int) -> None:
        """Transactions of a few changes each; one that the server refuses is rolled back."""
        with self.server.connect() as link, link.cursor() as cursor:
            cursor.execute("SET time_zone = '+00:00', sql_mode = ''")
            for _ in range(times):
                cursor.execute("BEGIN")
                try:
                    for _ in range(self.draw.randint(1, 4)):
                        for statement in self._statements(self.draw.choice(list(TABLES))):
                            cursor.execute(statement)
                except Exception:  # noqa: BLE001 - a duplicate key: the whole transaction is drawn in vain
                    cursor.execute("ROLLBACK")
                else:
                    cursor.execute("COMMIT")

    def _statements(self, table: str) -> list[str]:
        first, other = (self.draw.randrange(_KEYS) for _ in range(2))
        key = TABLES[table][1]
        at = f"{DB}.{table}"
        where = f"u = {first}"
        return self.draw.choice(
            [
                [f"INSERT INTO {at} VALUES ({key(first)}, {first}, 'new')"],
                [f"DELETE FROM {at} WHERE {where}"],
                [f"UPDATE {at} SET v = CONCAT(LEFT(v, 9), '{other}') WHERE {where}"],
                # The key moves, mostly across the bound of a chunk; the unique key goes to another row.
                [f"UPDATE {at} SET id = {key(other)} WHERE {where}"],
                [
                    f"UPDATE {at} SET u = -1 WHERE u = {first}",
                    f"UPDATE {at} SET u = {first} WHERE u = {other}",
                    f"UPDATE {at} SET u = {other} WHERE u = -1",
                ],
                [f"DELETE FROM {at} WHERE {where}", f"INSERT INTO {at} VALUES ({key(first)}, {first}, 'again')"],
            ]
        )

    def alter(self) -> None:
        """DDL that changes a definition, the rows of a table, or neither."""
        table = self.draw.choice(list(TABLES))
        kind = self.draw.choice(["alter", "truncate", "again", "other", "none", "none"])
        at = f"{DB}.{table}"
        made = len(self.made)
        other = f"{DB}.other{made}"
        statements = {
            "alter": [f"ALTER TABLE {at} MODIFY v VARCHAR({21 + made})"],
            "truncate": [f"TRUNCATE TABLE {at}"],
            "again": [f"CREATE TABLE {DB}.copied LIKE {at}", f"DROP TABLE {at}", f"RENAME TABLE {DB}.copied TO {at}"],
            "other": [f"CREATE TABLE {other} (id INT PRIMARY KEY)", f"INSERT INTO {other} VALUES (1)"],
            "none": [],
        }[kind]
        self.made.append(f"{kind} {table}")
        execute(self.server, *statements)


@dataclass
class Replica:
    """Applies strictly: an inserted row must be absent, a changed or deleted one present as it was; a table that is
    created again is empty."""

    loaded: Loaded
    tables: dict[int, Counter[str]] = field(default_factory=dict)
    state: SchemaState = field(default_factory=SchemaState)

    def apply(self, binlog: pb.Binlog) -> None:
        if binlog.ddl_job_id:
            [job] = self.loaded.journal.read_jobs(binlog.ddl_job_id + 1, 1)
            self.state = self.state.apply(DdlJob.parse(json.dumps(job)))
            return
        payload = encode_commit_binlog(1, 2, b"k", binlog.prewrite_value)
        for change in decode_transaction(payload, 2, 1, self.state):
            table = self.state.find_table(change.table_id)
            assert table is not None
            counts = self.tables.setdefault(table.id, Counter())
            if change.before is not None:
                before = json.dumps(change.before, sort_keys=True)
                assert counts[before], f"{table.name} has no {before}"
                counts[before] -= 1
            if change.after is not None:
                counts[json.dumps(change.after, sort_keys=True)] += 1
        self._check_keys()

    def _check_keys(self) -> None:
        for table_id, counts in self.tables.items():
            table = self.state.find_table(table_id)
            if table is None:
                continue
            name = table.name
            present = [json.loads(text) for text in counts.elements()]
            for column in ("u",) if name in ("keyless", "moment") else ("u", "id"):
                values = Counter(row.get(column) for row in present if row.get(column) is not None)
                twice = [value for value, count in values.items() if count > 1]
                assert not twice, f"{name}.{column} has {twice} twice"

    def rows(self, name: str) -> Counter[str]:
        table = self.loaded.catalog.find_table("s1", DB, name)
        assert table is not None
        return +self.tables.get(table.id, Counter())


def source_rows(server: MariaDb, loaded: Loaded, name: str) -> Counter[str]:
    table = loaded.catalog.find_table("s1", DB, name)
    assert table is not None
    with opened(server, 1, [(DB, name)]) as snapshot:
        reader, _ = reader_of(server, snapshot, table)
        return Counter(json.dumps(row, sort_keys=True) for row in images(reader, table))


def publish_log(loaded: Loaded) -> None:
    """Publish the log from the load's position to its end, as a worker does; it has rows only."""
    position = loaded.journal.read_positions()["s1"].position
    with connect(loaded.source) as link:
        end = read_log_end(link)
    source_log = open_log(loaded.source, SERVER_ID, position)
    while source_log.position.gtids != end.gtids:
        batch = source_log.read(100, 1 << 20, 30.0)
        assert all(transaction.statement is None for transaction in batch)
        definition_of = partial(loaded.catalog.find_definition, "s1")
        values = encode_transactions(
            [transaction.changes for transaction in batch], definition_of, loaded.catalog.version
        )
        outgoing = [
            Outgoing(transaction.id, transaction.time_ms, value)
            for transaction, value in zip(batch, values, strict=True)
            if value
        ]
        if outgoing:
            loaded.publisher.publish("s1", outgoing, batch[-1].end)
    source_log.end()


def check_published(server: MariaDb, loaded: Loaded, pumps: DyingPumps, names: Iterable[str] = TABLES) -> None:
    """Publish the log to its end; check that what was committed, applied strictly, is what `server` has, without
    duplicates."""
    publish_log(loaded)
    replica = Replica(loaded)
    for binlog in committed(pumps):
        replica.apply(binlog)
    for name in names:
        assert replica.rows(name) == source_rows(server, loaded, name), name
    # A table that is loaded again has a new id: what its predecessor got of a transaction was dropped with it.
    ids = Counter((binlog.prewrite_key.split(b"|", 2)[2], *_list_table_ids(binlog)) for binlog in committed(pumps))
    assert max(ids.values()) == 1


def _list_table_ids(binlog: pb.Binlog) -> list[int]:
    return sorted(mutation.table_id for mutation in pb.PrewriteValue.FromString(binlog.prewrite_value).mutations)
