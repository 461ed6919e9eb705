"""Writes a load of sysbench_rows to the pumps as WRITERS concurrent connections to TiDB would: 50 us of CPU per
transaction, pumps included.

Each round sends the P of new transactions and between them, in any order, the C of those whose P were answered in the
round before; their commit_ts are fetched after these answers and after the start_ts of the new ones. So at each pump P
and C alternate, WRITERS transactions are open, and commits do not arrive in order. Binlake's own encoder builds one
transaction of each kind with a marker for each value that varies; numpy then overwrites the markers.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
from sysbench_rows import C_BYTES, DB, FIRST_NUMBER, PAD_BYTES, RowImages, RowRole, SysbenchLoad, SysbenchWriter

from binlake.common.varint import write_uvarint
from binlake.pump_service.statusport import (
    Json,
    PrewrittenTransaction,
    StatusJobs,
    build_mvcc_body,
    lock_record,
    write_record,
)
from binlake.rows.codec import MutationBuilder, encode_prewrite_value
from binlake.rows.codec.datum import write_int
from binlake.rows.schema import Action, DbInfo
from binlake.rows.schema import mysqltypes as t
from binlake.rows.schema.forms import CHARSET, COLLATE, build_database_json, build_job_json
from binlake.rows.schema.job import PUBLIC
from binlake.testkit.workload.catalog import ID, WorkloadTable, WriterRows
from binlake.testkit.workload.source import LiveTransactions
from binlake.testkit.workload.spec import Col, create_sql
from binlake.tso import Clock
from binlake.wire import binlog_pb2 as pb
from binlake.wire import build
from binlake.wire.pump_pb2 import WriteBinlogReq

WRITE = "/binlog.Pump/WriteBinlog"
WRITERS = 256
ROUND_BYTES = 4 << 20
_SEED = 1
# Varints of nine bytes, as present-day timestamps are.
_START, _COMMIT = 0x0123456789ABCDEF, 0x0FEDCBA987654321
_COLUMNS = [
    (1, Col(ID, t.LONGLONG, 20, 0, not_null=True)),
    (2, Col("k")),
    (3, Col("c", t.VARCHAR, C_BYTES, -1, charset=CHARSET, collate=COLLATE)),
    (4, Col("pad", t.VARCHAR, PAD_BYTES, -1, charset=CHARSET, collate=COLLATE)),
]
_DATABASE_ID = 100


class BulkWire(Protocol):
    """Sends serialised WriteBinlogReq (pump_load.Bulk)."""

    def send(self, *messages: np.ndarray) -> None:
        """Send each row of the arrays as one message: the first row of each array, then the second, and so on."""

    def wait(self) -> None:
        """Return when all messages are answered."""


@dataclass
class KnownTransactions:
    """The transactions so far, for the status port, as blocks of consecutive timestamps. Memory: 24 bytes per block."""

    starts: list[int] = field(default_factory=list)
    ends: list[tuple[int, int]] = field(default_factory=list)

    def begin(self, first: int, count: int) -> None:
        """Add a block of `count` transactions from start_ts `first`, prewritten but not committed."""
        self.ends.append((first + count, 0))
        self.starts.append(first)

    def end(self, first: int, first_commit: int) -> None:
        """Mark the block from start_ts `first` as committed, with consecutive commit_ts from `first_commit`."""
        block = bisect.bisect_left(self.starts, first)
        self.ends[block] = (self.ends[block][0], first_commit)

    def answer(self, key: bytes, now: int) -> Json:
        """Return the body of `/mvcc/hex/KEY`."""
        del now
        start_ts = int.from_bytes(key[-8:], "big")
        block = bisect.bisect_right(self.starts, start_ts) - 1
        if block < 0 or start_ts >= self.ends[block][0] or key != LiveTransactions.build_key(start_ts):
            return build_mvcc_body(key, {})
        if not (first_commit := self.ends[block][1]):
            return build_mvcc_body(key, {"lock": lock_record(start_ts, key)})
        commit_ts = first_commit + start_ts - self.starts[block]
        return build_mvcc_body(key, {"writes": [write_record(PrewrittenTransaction(start_ts, key, commit_ts, False))]})


@dataclass(frozen=True)
class BulkResult:
    """Result of a load: the last commit_ts, the number of transactions, the bytes of their P."""

    last_ts: int
    transactions: int
    bytes: int


class BulkLoad:
    """One load over `wires`, one per pump; the source's status port serves `history` and `known`."""

    def __init__(self, load: SysbenchLoad, pd: Clock, cluster_id: int, wires: Sequence[BulkWire]) -> None:
        self.writer = SysbenchWriter(load)
        self.history, self.known = StatusJobs(), KnownTransactions()
        self._load, self.pd, self._cluster_id = load, pd, cluster_id
        self._wires = wires
        self._random = np.random.default_rng(_SEED)
        self._definitions = [_build_table(101 + number, f"sbtest{number + 1}") for number in range(load.tables)]
        self._version = 0

    def create(self) -> int:
        """Write the DDL of the database and its tables; return the last commit_ts."""
        info = build_database_json(_DATABASE_ID, DB)
        self._write_ddl(Action.CREATE_SCHEMA, f"CREATE DATABASE `{DB}`", (0, ""), db_info=info)
        last = 0
        for table in self._definitions:
            table.rebuild(DbInfo.from_json(info))
            query = create_sql(table.name, [col for _, col in table.columns], table.render_keys())
            last = self._write_ddl(
                Action.CREATE_TABLE, query, (table.table_id, table.name), table_info=table.build_info()
            )
        return last

    def write(self, roles: tuple[RowRole, ...], transactions: int) -> BulkResult:
        """Write `transactions` transactions that perform `roles`."""
        templates = [_Template.of(self._definitions, roles, n, self._cluster_id, self._version)
                     for n in range(len(self._definitions))]  # fmt: skip
        size = min(WRITERS, ROUND_BYTES // templates[0].prewrite.size)
        last, open_starts = 0, np.empty(0, np.int64)
        for done in range(0, transactions, size):
            count = min(size, transactions - done)
            prewrites = self._build_prewrites(templates, roles, done, count)
            starts = self._start(count)
            templates[0].put_starts(prewrites, templates[0].prewrite_starts, starts)
            last, commits = self._commit(templates[0], open_starts)
            self._send(prewrites, commits)
            open_starts = starts
        last, commits = self._commit(templates[0], open_starts)
        self._send(commits)
        return BulkResult(last, transactions, transactions * templates[0].prewrite.size)

    def build_row_template(self) -> RowTemplate:
        """Of a row of the first table."""
        marks = _build_marks(0)
        message = self._definitions[0].build_builder().insert(marks).message
        table = b"\x08" + write_uvarint(message.table_id)
        row = np.frombuffer(message.SerializeToString()[len(table) : -2], np.uint8)
        slots = {name: _find_offset(row, _encode_datum(name, text)) for name, text in marks.items()}
        return RowTemplate(row, slots, table, b"\x08" + write_uvarint(self._version))

    def build_request_head(self, size: int) -> bytes:
        """The bytes of a WriteBinlogReq before a payload of `size` bytes."""
        return b"".join((b"\x08", write_uvarint(self._cluster_id), b"\x12", write_uvarint(size)))

    def _build_prewrites(
        self, templates: list[_Template], roles: tuple[RowRole, ...], first: int, count: int
    ) -> np.ndarray:
        which = (first + np.arange(count)) % len(templates)
        prewrites = np.stack([template.prewrite for template in templates])[which]
        for images, slots in zip(self.writer.build_block(roles, first, count), templates[0].slots, strict=True):
            for image, places in zip(images, slots, strict=True):
                self.put_image(prewrites, image, places)
        return prewrites

    def _start(self, count: int) -> np.ndarray:
        last = self.pd.fetch_ts(count)
        self.known.begin(last - count + 1, count)
        return np.arange(last - count + 1, last + 1)

    def _commit(self, template: _Template, starts: np.ndarray) -> tuple[int, np.ndarray]:
        """Return (the last commit_ts, the C) of the transactions from `starts`; (0, no rows) if there are none."""
        commits = np.repeat(template.commit[None], count := len(starts), axis=0)
        if not count:
            return 0, commits
        last = self.pd.fetch_ts(count)
        self.known.end(int(starts[0]), last - count + 1)
        template.put_starts(commits, template.commit_starts, starts)
        _put(commits, template.commit_ts, _encode_uvarints(np.arange(last - count + 1, last + 1), 9))
        return last, commits

    def put_image(self, out: np.ndarray, image: RowImages, places: dict[str, int]) -> None:
        """Write the values of `image` at their offsets in the rows of `out`."""
        for name, column in image._asdict().items():
            wide = (
                _encode_uvarints(column.astype(np.int64) * 2, 4)
                if name in ("id", "k")
                else self.writer.read_texts(name, column)
            )
            _put(out, places[name], wide)

    def _send(self, *parts: np.ndarray) -> None:
        """Share out each part over the pumps, a C to the pump of its P; the C, the last part, in any order."""
        for number, wire in enumerate(self._wires):
            *first, commits = (part[number :: len(self._wires)] for part in parts)
            wire.send(*first, self._random.permutation(commits))
        for wire in self._wires:
            wire.wait()

    def _write_ddl(
        self, action: Action, query: str, table: tuple[int, str], *, db_info: Json | None = None,
        table_info: Json | None = None,
    ) -> int:  # fmt: skip
        self._version += 1
        start_ts = self.pd.fetch_ts()
        self.known.begin(start_ts, 1)
        job_id = 1000 + self._version
        prewrite = build.build_prewrite(start_ts, LiveTransactions.build_key(start_ts), ddl_query=query.encode(),
                                        ddl_job_id=job_id, ddl_schema_state=PUBLIC)  # fmt: skip
        self._send_one(prewrite)
        commit_ts = self.pd.fetch_ts()
        self.known.end(start_ts, commit_ts)
        self._send_one(build.build_commit(prewrite, commit_ts))
        self.history.add(
            build_job_json(job_id, action, query, schema=(_DATABASE_ID, DB), table=table, version=self._version,
                          start_ts=start_ts, finished_ts=self.pd.fetch_ts(), db_info=db_info, table_info=table_info)
        )  # fmt: skip
        return commit_ts

    def _send_one(self, binlog: pb.Binlog) -> None:
        self._wires[0].send(_build_request(self._cluster_id, binlog)[None])
        self._wires[0].wait()


@dataclass(frozen=True)
class _Template:
    """The P and C of a transaction, and byte offsets in them. `slots`: by role and image, each column's offset."""

    prewrite: np.ndarray
    commit: np.ndarray
    slots: list[list[dict[str, int]]]
    prewrite_starts: tuple[int, int]
    commit_starts: tuple[int, int]
    commit_ts: int

    @classmethod
    def of(
        cls, tables: list[WorkloadTable], roles: tuple[RowRole, ...], number: int, cluster_id: int, version: int
    ) -> _Template:
        """Build the template of transaction `number` among those that perform `roles`."""
        builders: dict[int, MutationBuilder] = {}
        marked: list[list[dict[str, str]]] = []
        for place, role in enumerate(roles):
            table = tables[(number + place) % len(tables)]
            builder = builders.setdefault(table.table_id, table.build_builder())
            rows = [_build_marks(3 * place + half) for half in range(1 if role.op == "insert" else 2)]
            if role.op == "insert":
                builder.insert(rows[0])
            elif role.op == "update":
                builder.update(rows[0], rows[1])
            else:
                builder.delete(rows[0]).insert(rows[1])
            marked.append(rows)
        value = encode_prewrite_value(version, [builder.message for builder in builders.values()])
        binlog = build.build_prewrite(_START, LiveTransactions.build_key(_START), value)
        prewrite, commit = (
            _build_request(cluster_id, binlog),
            _build_request(cluster_id, build.build_commit(binlog, _COMMIT)),
        )
        slots = [
            [{name: _find_offset(prewrite, _encode_datum(name, text)) for name, text in row.items()} for row in rows]
            for rows in marked
        ]
        return cls(
            prewrite, commit, slots, _starts(prewrite), _starts(commit), _find_offset(commit, write_uvarint(_COMMIT))
        )

    def put_starts(self, out: np.ndarray, places: tuple[int, int], starts: np.ndarray) -> None:
        """Write each start_ts at its two offsets: as a varint, and inside the key."""
        _put(out, places[0], _encode_uvarints(starts, 9))
        _put(out, places[1], starts.astype(">u8").view(np.uint8).reshape(len(starts), 8))


def build_large_prewrite(bulk: BulkLoad, start_ts: int, size: int) -> tuple[pb.Binlog, int, bytes]:
    """The P of a transaction of about `size` bytes that inserts rows: (its fields without rows, rows, serialised)."""
    template = bulk.build_row_template()
    rows = size // (template.row.size + 2)
    image = bulk.writer.build_block((RowRole("insert"),), 0, rows)[0][0]
    fields = np.repeat(template.row[None], rows, axis=0)
    bulk.put_image(fields, image, template.slots)
    sequence = bytes((0x38, 0)) * rows
    mutation = b"".join((template.table, fields.tobytes(), sequence))
    head = build.build_prewrite(start_ts, LiveTransactions.build_key(start_ts))
    value = b"".join((template.version, b"\x12", write_uvarint(len(mutation)), mutation))
    plain = head.SerializeToString()
    # Field 5 stands between the key and the DDL's numbers, which take two bytes each.
    return head, rows, b"".join((plain[:-4], b"\x2a", write_uvarint(len(value)), value, plain[-4:]))


class RowTemplate(NamedTuple):
    """The bytes of an inserted row as a field of its mutation, the offsets of its values, and the fields before it."""

    row: np.ndarray
    slots: dict[str, int]
    table: bytes
    version: bytes


def _build_table(table_id: int, name: str) -> WorkloadTable:
    return WorkloadTable(table_id, name, list(_COLUMNS), {}, True, [WriterRows(1, 1)], [(2, "k", "k"), (3, "c", "c")])


def _build_marks(number: int) -> dict[str, str]:
    """A row whose values occur nowhere else in its transaction."""
    return {ID: str(FIRST_NUMBER + 1000 + number), "k": str(FIRST_NUMBER + 2000 + number),
            "c": f"{number:03d}" * (C_BYTES // 3), "pad": f"{500 + number:03d}" * (PAD_BYTES // 3)}  # fmt: skip


def _encode_datum(name: str, text: str) -> bytes:
    # Without the flag byte of the datum.
    return write_int(int(text))[1:] if name in (ID, "k") else text.encode()


def _starts(message: np.ndarray) -> tuple[int, int]:
    return _find_offset(message, write_uvarint(_START)), _find_offset(message, _START.to_bytes(8, "big"))


def _find_offset(message: np.ndarray, mark: bytes) -> int:
    """Return the offset of `mark`, which must occur exactly once."""
    data = message.tobytes()
    assert data.count(mark) == 1, mark
    return data.find(mark)


def _put(out: np.ndarray, place: int, values: np.ndarray) -> None:
    out[:, place : place + values.shape[1]] = values


def _encode_uvarints(numbers: np.ndarray, size: int) -> np.ndarray:
    """Encode `numbers` as varints of `size` bytes each."""
    parts = numbers[:, None] >> (7 * np.arange(size)) & 0x7F
    parts[:, :-1] |= 0x80
    return parts.astype(np.uint8)


def _build_request(cluster_id: int, binlog: pb.Binlog) -> np.ndarray:
    request = WriteBinlogReq(clusterID=cluster_id, payload=binlog.SerializeToString()).SerializeToString()
    return np.frombuffer(request, np.uint8)
