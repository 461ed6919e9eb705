"""Hand-made binlog files in the form of the original drainer: bytes follow the reference and use no code under test
except the names of types.

Values come from a capture's decoded.jsonl, which TiDB's own codec produced; types come from its DDL jobs.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from itertools import groupby
from pathlib import Path
from typing import Any

import google_crc32c

from binlake.testkit.captures.capture import Capture

Json = Mapping[str, Any]

_NAMES = {
    1: "tinyint", 2: "smallint", 3: "int", 4: "float", 5: "double", 7: "timestamp", 8: "bigint", 9: "mediumint",
    10: "date", 11: "time", 12: "datetime", 13: "year", 15: "varchar", 16: "bit", 0xF5: "json", 0xF6: "decimal",
    0xF7: "enum", 0xF8: "set", 0xF9: "tinytext", 0xFA: "mediumtext", 0xFB: "longtext", 0xFC: "text", 0xFD: "varchar",
    0xFE: "char",
}  # fmt: skip
_BINARY = {
    15: "varbinary",
    0xFD: "varbinary",
    0xFE: "binary",
    0xF9: "tinyblob",
    0xFA: "mediumblob",
    0xFB: "longblob",
    0xFC: "blob",
}
_KINDS = {"I": 0, "U": 1, "D": 2}


def uvarint(value: int) -> bytes:
    """Encode 7 bits per byte, least significant group first."""
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def varint(value: int) -> bytes:
    """Encode as a zig-zag varint."""
    return uvarint(value << 1 if value >= 0 else (-value << 1) - 1)


def field(number: int, value: int | bytes) -> bytes:
    """A field of a protobuf message."""
    if isinstance(value, int):
        return uvarint(number << 3) + uvarint(value)
    return uvarint(number << 3 | 2) + uvarint(len(value)) + value


def record(payload: bytes) -> bytes:
    """Magic, length, payload, CRC-32C."""
    return struct.pack("<IQ", 471532804, len(payload)) + payload + struct.pack("<I", google_crc32c.value(payload))


def compact(value: bytes) -> bytes:
    """The compact-bytes datum of a string."""
    return b"\x02" + varint(len(value)) + value


def real(value: float) -> bytes:
    """The datum of a FLOAT or DOUBLE: memory-comparable bytes."""
    (bits,) = struct.unpack(">Q", struct.pack(">d", value))
    return b"\x05" + struct.pack(">Q", ~bits & (1 << 64) - 1 if bits >> 63 else bits | 1 << 63)


def datum(value: Any, column: Json) -> bytes:
    """The datum that the drainer writes for a `value` of decoded.jsonl in `column` (of a TableInfo)."""
    if value is None:
        return b"\x00"
    tp, flag = column["type"]["Tp"], column["type"]["Flag"]
    raw = bytes.fromhex(value["hex"]) if isinstance(value, dict) else value.encode()
    if tp in (1, 2, 3, 8, 9, 13):
        return b"\x09" + uvarint(int(value)) if flag & 32 else b"\x08" + varint(int(value))
    if tp == 4:
        return real(struct.unpack("<f", struct.pack("<f", float(value)))[0])
    if tp == 5:
        return real(float(value))
    if tp == 16:
        return b"\x09" + uvarint(int.from_bytes(raw, "big"))
    if tp == 0xF7:
        elems = column["type"]["Elems"]
        return b"\x09" + uvarint(elems.index(value) + 1 if value in elems else 0)
    if tp == 0xF8:
        chosen = value.split(",") if value else []
        return b"\x09" + uvarint(sum(1 << at for at, name in enumerate(column["type"]["Elems"]) if name in chosen))
    return compact(raw)


def column_bytes(column: Json, value: Any, changed: Any = None, *, update: bool = False) -> bytes:
    """A Column message."""
    tp = column["type"]["Tp"]
    names = _BINARY if column["type"]["Charset"] == "binary" and tp in _BINARY else _NAMES
    parts = [field(1, column["name"]["O"].encode()), field(2, bytes([tp])), field(3, names[tp].encode())]
    parts.append(field(4, datum(value, column)))
    if update:
        parts.append(field(5, datum(changed, column)))
    return b"".join(parts)


def event_bytes(db: str, table: str, op: str, columns: Iterable[bytes]) -> bytes:
    """An Event message."""
    head = [field(1, db.encode()), field(2, table.encode()), field(3, _KINDS[op])]
    return b"".join([*head, *(field(4, column) for column in columns)])


def transaction_bytes(commit_ts: int, events: Iterable[bytes]) -> bytes:
    """A Binlog message of row events."""
    data = b"".join(field(1, event) for event in events)
    return field(1, 0) + field(2, commit_ts) + field(3, data)


def ddl_bytes(commit_ts: int, db: str, query: str) -> bytes:
    """A Binlog message of a DDL; a USE of the database precedes it, except for CREATE DATABASE."""
    made = query.upper().startswith(("CREATE DATABASE", "CREATE SCHEMA"))
    quoted = db.replace("`", "``")
    text = f"{query};" if made else f"use `{quoted}`; {query};"
    return field(1, 1) + field(2, commit_ts) + field(4, text.encode())


@dataclass(frozen=True)
class Written:
    """A record's payload and its commit_ts."""

    commit_ts: int
    payload: bytes


def write_files(folder: Path, payloads: Sequence[Written], most: int = 1 << 20) -> list[Path]:
    """Write files of about `most` bytes; each ends with a whole record."""
    paths: list[Path] = []
    content = bytearray()
    for number, one in enumerate(payloads, 1):
        content += record(one.payload)
        if len(content) >= most or number == len(payloads):
            path = folder / f"binlog-{len(paths):016d}-20240101000000"
            path.write_bytes(content)
            paths.append(path)
            content = bytearray()
    return paths


def payloads_of(capture: Capture, without: str = "mysql") -> list[Written]:
    """All payloads that a drainer writes for a capture, in commit order, except those of the database `without`."""
    from deploy.local.commitlog import read_log

    log = read_log(capture)
    jobs = {job.id: job for _, job in log.jobs}
    found = [
        Written(ddl.commit_ts, ddl_bytes(ddl.commit_ts, jobs[ddl.job_id].schema_name, ddl.query))
        for ddl in log.ddls
        if ddl.kind == "ddl" and jobs[ddl.job_id].took_effect and jobs[ddl.job_id].schema_name != without
    ]
    infos = _Infos(capture, {job.id: place for place, job in log.jobs})
    for commit_ts, rows in groupby(capture.read_decoded(), key=lambda row: int(row["commit_ts"])):
        own = (row for row in rows if not row["table"].startswith(f"{without}."))
        events = [_event(row, infos) for row in own if infos.has(int(row["table_id"]), commit_ts)]
        if events:
            found.append(Written(commit_ts, transaction_bytes(commit_ts, events)))
    return sorted(found, key=lambda one: one.commit_ts)


def _event(row: Json, infos: _Infos) -> bytes:
    db, _, table = row["table"].partition(".")
    before, after = row.get("before") or {}, row.get("after") or {}
    columns = infos.columns(int(row["table_id"]), int(row["commit_ts"]))
    shown = after if row["op"] == "I" else before
    update = row["op"] == "U"
    wanted = [column for column in columns if column["name"]["O"] in (after if update else shown)]
    made = (
        column_bytes(c, shown.get(c["name"]["O"]), after.get(c["name"]["O"]) if update else None, update=update)
        for c in wanted
    )
    return event_bytes(db, table, row["op"], made)


class _Infos:
    """TableInfos by table and commit_ts: a drainer uses the newest one, whichever definition a row was written with."""

    def __init__(self, capture: Capture, places: Mapping[int, int]) -> None:
        self._gone: dict[int, int] = {}
        self._known: dict[int, list[tuple[int, list[Json]]]] = {}
        for job in capture.read_jobs():
            if job["type"] in (4, 11):
                # A transaction that began before a DROP or TRUNCATE may commit after it; a drainer omits its rows.
                self._gone[job["table_id"]] = places[job["id"]]
            for info in _infos_of(job.get("binlog") or {}):
                partitions = (info.get("partition") or {}).get("definitions") or ()
                for table_id in (info["id"], *(partition["id"] for partition in partitions)):
                    known = self._known.setdefault(table_id, [])
                    known.append((places[job["id"]], [column for column in info["cols"] or () if column["state"] == 5]))

    def has(self, table_id: int, commit_ts: int) -> bool:
        """Whether the table exists at `commit_ts`."""
        gone = self._gone.get(table_id, commit_ts)
        return gone >= commit_ts or any(gone < at <= commit_ts for at, _ in self._known[table_id])

    def columns(self, table_id: int, commit_ts: int) -> list[Json]:
        """The columns of the last definition at or before `commit_ts`."""
        known = self._known[table_id]
        found = [columns for at, columns in known if at <= commit_ts]
        return found[-1] if found else known[0][1]


def _infos_of(binlog: Json) -> Iterator[Json]:
    if binlog.get("TableInfo"):
        yield binlog["TableInfo"]
    yield from binlog.get("MultipleTableInfos") or ()


def column_of(name: str, tp: int, *, flag: int = 0, charset: str = "utf8mb4", elems: Sequence[str] = ()) -> Json:
    """A column in the form of a TableInfo."""
    return {"name": {"O": name}, "type": {"Tp": tp, "Flag": flag, "Charset": charset, "Elems": list(elems)}}


@dataclass
class Story:
    """Made-up transactions and DDL of the tables app.t(id, v) and app.log(line), which has no key; commit_ts count
    up.
    """

    ts: int = 1000
    written: list[Written] = dataclass_field(default_factory=list)

    def put(self, *rows: tuple[int, str, str | None]) -> Story:
        """One transaction on app.t: INSERT (empty old value), UPDATE, or DELETE (new value None)."""
        return self._add(*(self._row(*row) for row in rows))

    def log(self, *lines: str) -> Story:
        """INSERTs into app.log."""
        return self._add(*(event_bytes("app", "log", "I", [column_bytes(_LINE, line)]) for line in lines))

    def unlog(self, line: str) -> Story:
        """DELETE one of several equal rows of app.log."""
        return self._add(event_bytes("app", "log", "D", [column_bytes(_LINE, line)]))

    def ddl(self, query: str, db: str = "app") -> Story:
        """Add a DDL statement."""
        self.ts += 10
        self.written.append(Written(self.ts, ddl_bytes(self.ts, db, query)))
        return self

    def together(self) -> Story:
        """Give the next entry the same commit_ts as the last one."""
        self.ts -= 10
        return self

    def _row(self, key: int, old: str, new: str | None) -> bytes:
        number = str(key)
        if not old:
            return event_bytes("app", "t", "I", [column_bytes(_ID, number), column_bytes(_V, new)])
        if new is None:
            return event_bytes("app", "t", "D", [column_bytes(_ID, number), column_bytes(_V, old)])
        columns = [column_bytes(_ID, number, number, update=True), column_bytes(_V, old, new, update=True)]
        return event_bytes("app", "t", "U", columns)

    def _add(self, *events: bytes) -> Story:
        self.ts += 10
        self.written.append(Written(self.ts, transaction_bytes(self.ts, events)))
        return self


_ID, _V, _LINE = column_of("id", 8), column_of("v", 15), column_of("line", 15)
