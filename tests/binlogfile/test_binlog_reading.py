"""Reading binlog files from handwritten bytes that follow the published proto and framing (tidb-binlog 1.7, 1.9)."""

from __future__ import annotations

import gzip
import struct
import zlib
from pathlib import Path

import google_crc32c
import pytest

from binlake.binlogfile.folder import INDEX_PATH as PATH
from binlake.binlogfile.folder import BinlogFile, BinlogIndex, IndexedFile, format_file_name, parse_name
from binlake.binlogfile.framing import DamagedFile, compress, pack_record
from binlake.binlogfile.reading import BinlogDdl, BinlogTransaction, decode_datum, read_items
from binlake.common.filestore import LocalStore
from binlake.errors import Permanent
from binlake.rows.codec import datum as d
from binlake.rows.schema import mysqltypes as t

NAMES = ["binlog-0000000000000000-20261101000000", "binlog-0000000000000001-20261102000000",
         "binlog-0000000000000002-20261103000000"]  # fmt: skip


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def number(field_number: int, value: int) -> bytes:
    return varint(field_number << 3) + varint(value)


def column(name: str, tp: int, mysql_type: str, value: bytes, changed: bytes = b"") -> bytes:
    shown = field(1, name.encode()) + field(2, bytes([tp])) + field(3, mysql_type.encode()) + field(4, value)
    return shown + (field(5, changed) if changed else b"")


def event(kind: int, *columns: bytes) -> bytes:
    return field(1, b"shop") + field(2, b"item") + number(3, kind) + b"".join(field(4, one) for one in columns)


def dml(commit_ts: int, *events: bytes) -> bytes:
    return number(1, 0) + number(2, commit_ts) + field(3, b"".join(field(1, one) for one in events))


def ddl(commit_ts: int, text: str) -> bytes:
    return number(1, 1) + number(2, commit_ts) + field(4, text.encode())


def record(payload: bytes) -> bytes:
    head = struct.pack("<I", 471532804) + struct.pack("<Q", len(payload))
    return head + payload + struct.pack("<I", google_crc32c.value(payload))


def insert(commit_ts: int, key: int = 1) -> bytes:
    return dml(commit_ts, event(0, column("id", t.LONG, "int", d.write_int(key))))


def folder(at: Path, *files: list[bytes]) -> LocalStore:
    for name, payloads in zip(NAMES, files, strict=False):
        (at / name).write_bytes(b"".join(map(record, payloads)))
    return LocalStore(at)


def stamps(store: LocalStore, first: int = 0, last: int | None = None, *, torn_end: bool = False) -> list[int]:
    return [item.commit_ts for item in read_items(store, first, last, torn_end=torn_end)]


def test_rows_and_ddl_are_read(tmp_path: Path) -> None:
    changes = [
        event(0, column("id", t.LONG, "int", b"\x08\x02"), column("v", t.VARCHAR, "varchar", b"\x02\x02a")),
        event(
            1, column("id", t.LONG, "int", b"\x08\x02", b"\x08\x04"), column("v", t.VARCHAR, "varchar", b"\0", b"\0")
        ),
        event(2, column("id", t.LONG, "int", b"\x08\x04")),
    ]
    texts = ["CREATE DATABASE `shop`;", "use shop; CREATE TABLE item (id INT);", "use `a``;b`; DROP TABLE t;;"]
    store = folder(tmp_path, [ddl(10 + place, text) for place, text in enumerate(texts)], [dml(20, *changes)])
    *ddls, rows = read_items(store)
    assert [(one.db, one.sql) for one in ddls if isinstance(one, BinlogDdl)] == [
        ("", "CREATE DATABASE `shop`"),
        ("shop", "CREATE TABLE item (id INT)"),
        ("a`;b", "DROP TABLE t"),
    ]
    assert isinstance(rows, BinlogTransaction)
    assert [(one.db, one.table, one.kind) for one in rows.events] == [
        ("shop", "item", "insert"),
        ("shop", "item", "update"),
        ("shop", "item", "delete"),
    ]
    shown = [[(c.name, c.tp, decode_datum(c.value), c.changed) for c in one.columns] for one in rows.events]
    assert shown[0] == [("id", t.LONG, 1, None), ("v", t.VARCHAR, b"a", None)]
    assert shown[1] == [("id", t.LONG, 1, b"\x08\x04"), ("v", t.VARCHAR, None, b"\0")]
    assert shown[2] == [("id", t.LONG, 2, None)]


@pytest.mark.parametrize(
    ("datum", "value"),
    [
        ("00", None),
        ("0801", -1),
        ("09ffffffffffffffffff01", (1 << 64) - 1),
        ("05bff8000000000000", 1.5),
        ("060e04810dfb38d204d2", "1234567890.1234"),
        ("020661c3b6", "aö".encode()),
    ],
)
def test_datums_have_their_values(datum: str, value: object) -> None:
    assert decode_datum(bytes.fromhex(datum)) == value
    with pytest.raises(ValueError, match="cannot be read"):
        decode_datum(bytes.fromhex(datum)[: -1 if len(datum) > 2 else 0])


def test_range_reads_only_the_needed_files(tmp_path: Path) -> None:
    store = folder(tmp_path, [insert(10), insert(12)], [insert(20), insert(22)], [insert(30)])
    assert stamps(store) == [10, 12, 20, 22, 30]
    assert stamps(store, 12, 20) == [12, 20]
    # Files on both sides of the range need not be intact.
    (tmp_path / NAMES[0]).write_bytes(b"damaged")
    assert stamps(store, 21, 22) == [22]
    with pytest.raises(DamagedFile, match=NAMES[0]):
        stamps(store)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: data[:-1], "cut short"),
        (lambda data: data + b"\x04\x05", "cut short"),
        (lambda data: data[:-6] + bytes([data[-6] ^ 1]) + data[-5:], "wrong checksum"),
        (lambda data: b"\0" + data[1:], "no record begins"),
        (lambda data: data[:4] + b"\xff" * 8 + data[12:], "a record of 18446744073709551615 bytes"),
        (lambda data: data[:4] + b"\xff\xff\xff\0\0\0\0\0" + data[12:], "cut short"),
        (lambda _: record(b"\xff"), "not a binlog"),
    ],
)
def test_damage_error_names_the_position(tmp_path: Path, damage: object, message: str) -> None:
    store = folder(tmp_path, [insert(10)])
    data = (tmp_path / NAMES[0]).read_bytes()
    (tmp_path / NAMES[0]).write_bytes(data + damage(record(insert(12))))  # type: ignore[operator]
    with pytest.raises(DamagedFile, match=message) as error:
        stamps(store)
    assert error.value.where["file"] == NAMES[0]
    assert int(error.value.where["offset"]) in (len(data), len(data) + len(record(insert(12))))


def test_invalid_row_is_damage(tmp_path: Path) -> None:
    store = folder(tmp_path, [dml(10, event(0, b"\xff"))])
    [item] = read_items(store)
    assert isinstance(item, BinlogTransaction)
    with pytest.raises(DamagedFile, match="a row cannot be read"):
        _ = item.events


def test_torn_end_of_the_last_file_is_accepted_on_request(tmp_path: Path) -> None:
    store = folder(tmp_path, [insert(10)], [insert(12), insert(14)])
    whole = [(tmp_path / name).read_bytes() for name in NAMES[:2]]
    (tmp_path / NAMES[1]).write_bytes(whole[1][:-3])
    assert stamps(store, torn_end=True) == [10, 12]
    (tmp_path / NAMES[0]).write_bytes(whole[0][:-3])
    with pytest.raises(DamagedFile, match=NAMES[0]):
        stamps(store, torn_end=True)


def test_missing_or_duplicate_file_is_named(tmp_path: Path) -> None:
    store = folder(tmp_path, [insert(10)], [insert(20)], [insert(30)])
    (tmp_path / "binlog-0000000000000001-20261102000001").write_bytes(b"")
    with pytest.raises(Permanent, match=r"two binlog files have the same number .*20261102000000, .*20261102000001"):
        stamps(store)
    for name in ("binlog-0000000000000001-20261102000001", NAMES[1]):
        (tmp_path / name).unlink()
    with pytest.raises(Permanent, match=r"missing .*missing=1 "):
        stamps(store)
    assert stamps(store, 31) == []
    with pytest.raises(Permanent, match="no binlog files"):
        stamps(LocalStore(tmp_path / "nowhere"))


def test_missing_first_files_are_detected_for_a_whole_range(tmp_path: Path) -> None:
    # A drainer's retention removes files like this; number 0 was the first file.
    store = folder(tmp_path, [insert(10)], [insert(20)], [insert(30)])
    assert [item.commit_ts for item in read_items(store, 5, whole_range=True)] == [10, 20, 30]
    (tmp_path / NAMES[0]).unlink()
    for first in (0, 20, 25):
        wanted = [ts for ts in (20, 30) if ts >= first]
        assert [item.commit_ts for item in read_items(store, first, whole_range=True)] == wanted
    with pytest.raises(Permanent, match=rf"do not contain the whole range .*range=19- held=from 20 on, in {NAMES[1]}"):
        read_items(store, 19, whole_range=True)


def test_repeated_records_of_a_drainer_are_read_once(tmp_path: Path) -> None:
    # The drainer was killed after 20 and continued from its checkpoint at 10.
    store = folder(tmp_path, [insert(10), insert(12), insert(20)], [insert(12), insert(20), insert(22)])
    assert stamps(store) == [10, 12, 20, 22]
    assert stamps(store, 13) == [20, 22]


def test_compressed_files_are_read(tmp_path: Path) -> None:
    plain = [b"".join(map(record, payloads)) for payloads in ([insert(10)], [insert(20)], [insert(30), insert(32)])]
    (tmp_path / "binlog-0000000000000000-20261101000000-407623959013752832.tar.gz").write_bytes(gzip.compress(plain[0]))
    (tmp_path / "binlog-0000000000000001").write_bytes(plain[1])
    # The file consists of several concatenated members.
    members = compress(plain[2][:40], "zstd") + compress(plain[2][40:], "zstd")
    zstd = tmp_path / "binlog-0000000000000002-20261103000000.zst"
    zstd.write_bytes(members)
    (tmp_path / ".lock").write_bytes(b"")
    store = LocalStore(tmp_path)
    assert stamps(store) == [10, 20, 30, 32]
    zstd.write_bytes(members[:-3])
    with pytest.raises(DamagedFile, match="compressed data cannot be read"):
        stamps(store)


def test_index_defines_the_content(tmp_path: Path) -> None:
    store = folder(tmp_path, [insert(10)], [insert(20), insert(22)])
    first, second = ((tmp_path / name).read_bytes() for name in NAMES[:2])
    one = len(record(insert(20)))
    files = (
        IndexedFile(NAMES[0], 10, 10, len(first), 1, zlib.crc32(first)),
        IndexedFile(NAMES[1], 20, 20, one, 1, zlib.crc32(second[:one])),
    )
    index = BinlogIndex("r.f", 5, 21, files)
    assert BinlogIndex.from_json(index.to_json()) == index
    store.put(PATH, index.to_json())
    # Records after the index belong to a window that is still being written, so they are not read.
    assert stamps(store) == [10, 20]
    for held in ((6, 21), (0, 21), (6, None)):
        assert [item.commit_ts for item in read_items(store, *held, whole_range=True)] == [10, 20]
    for bounds in ((5, 21), (6, 22), (5, None)):
        with pytest.raises(Permanent, match=r"do not contain the whole range .*held=6-21"):
            read_items(store, *bounds, whole_range=True)
    (tmp_path / NAMES[1]).write_bytes(b"")
    with pytest.raises(DamagedFile, match=f"it ends early: the index says {one} bytes"):
        stamps(store)
    (tmp_path / NAMES[1]).unlink()
    with pytest.raises(Permanent, match=f"a file does not exist .*{NAMES[1]}"):
        stamps(store)
    (tmp_path / "binlog-0000000000000000-20270101000000").write_bytes(first)
    with pytest.raises(Permanent, match="two binlog files have the same number"):
        stamps(store)


def test_order_is_checked_with_an_index(tmp_path: Path) -> None:
    store = folder(tmp_path, [insert(20), insert(10)])
    assert stamps(store) == [20]
    data = (tmp_path / NAMES[0]).read_bytes()
    file = IndexedFile(NAMES[0], 20, 10, len(data), 2, zlib.crc32(data))
    store.put(PATH, BinlogIndex("r.f", 0, 30, (file,)).to_json())
    with pytest.raises(DamagedFile, match="commit_ts 10 comes after 20"):
        stamps(store)


@pytest.mark.parametrize(
    "content", [b"", b"{}", b'{"format": 2}', b"\xff", b'{"format":1,"feed":"f","lo":"0","hi":"1"}\n{}']
)
def test_damaged_index_is_reported(tmp_path: Path, content: bytes) -> None:
    store = LocalStore(tmp_path)
    store.put(PATH, content)
    with pytest.raises(Permanent, match="the index of binlog files is damaged"):
        stamps(store)


def test_names() -> None:
    commit_ts = 1795000000000 << 18
    assert format_file_name(7, commit_ts) == "binlog-0000000000000007-20261118110640"
    for compression in ("none", "gzip", "zstd"):
        name = format_file_name(7, commit_ts, compression)  # type: ignore[arg-type]
        assert parse_name(name) == BinlogFile(7, name, "20261118110640", compression)  # type: ignore[arg-type]
    old = "binlog-v2.1.0-0000000000000003-20181010101010"
    assert parse_name(old) == BinlogFile(3, old, "20181010101010", "none")
    assert [
        parse_name(name) for name in ("checkpoint", ".lock", "binlog-1.tmp", "binlog-x", "_binlake/index.json")
    ] == [None] * 5


def test_record_matches_the_framing() -> None:
    for payload in (b"", insert(10)):
        assert pack_record(payload) == record(payload)
