"""Transactions from events: cases that servers write rarely, or only after a fault."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
from support.binlogevents import START, UUID_1, Log, read_all, reader_of

from binlake.errors import BinlakeError, LostRange, SourceRefused, WireError
from binlake.mysqlbinlog.events.header import ARTIFICIAL, IGNORABLE, EventType
from binlake.mysqlbinlog.events.query import Xid
from binlake.mysqlbinlog.events.transactions import GtidOrigin
from binlake.mysqlbinlog.model import BinlogPosition, Flavor, RowsEvent

_STANDALONE = 1


def test_transactions_have_positions_of_files_and_gtids() -> None:
    log = Log()
    events = [log.description(), *log.inserted(1), *log.inserted(2)]
    first, second = read_all(reader_of(), events)
    assert (first.id, second.id) == (f"{UUID_1}:1", f"{UUID_1}:2")
    assert second.end == BinlogPosition("binlog.000001", log.offset, f"{UUID_1}:1-2")
    assert first.time_ms == log.time * 1000
    assert first.size + second.size == sum(map(len, events[1:]))
    (change,) = first.changes
    assert (change.table.db, change.table.table, change.before, change.after) == ("d", "t", b"", b"\1")
    assert change.rows == b"\0" + struct.pack("<i", 1)


def test_id_without_gtids_is_the_position_of_the_begin() -> None:
    log = Log()
    positions = []
    events = [log.description()]
    for value in (1, 2):
        positions.append(f"binlog.000001:{log.offset}")
        events += [log.gtid(anonymous=True), log.query("BEGIN"), log.table(), log.insert(value), log.xid()]
    seen = read_all(reader_of(gtids=GtidOrigin.NONE), events)
    assert [transaction.id for transaction in seen] == positions
    assert seen[-1].end == BinlogPosition("binlog.000001", log.offset)


def test_old_log_has_no_event_before_begin() -> None:
    log = Log(checksums=False)
    events = [log.description(), log.query("BEGIN"), log.table(), log.insert(1), log.xid(), log.query("DROP TABLE t")]
    rows, definition = read_all(reader_of(gtids=GtidOrigin.NONE), events)
    assert len(rows.changes) == 1
    assert definition.statement is not None
    assert definition.id.startswith("binlog.000001:")


def test_file_may_be_longer_than_4_gib() -> None:
    start = BinlogPosition("binlog.000001", (1 << 32) - 150)
    log = Log(offset=start.offset)
    (transaction,) = read_all(reader_of(start=start), [_artificial(log.description()), *log.inserted(1)])
    assert transaction.end.offset > 1 << 32
    assert transaction.end.offset == log.offset


def _artificial(event: bytes) -> bytes:
    return event[:13] + bytes(4) + struct.pack("<H", ARTIFICIAL) + event[19:]


def test_rotation_continues_in_the_next_file() -> None:
    log = Log()
    events = [log.description(), *log.inserted(1)]
    events.append(log.event(EventType.ROTATE, struct.pack("<Q", 4) + b"binlog.000002"))
    log.offset = 4
    events += [log.description(), *log.inserted(2)]
    assert [transaction.end.file for transaction in read_all(reader_of(), events)] == ["binlog.000001", "binlog.000002"]


def test_executed_transactions_are_not_returned_again() -> None:
    log = Log()
    start = BinlogPosition("", 4, f"{UUID_1}:1-2")
    events = [log.description(), *log.inserted(1), *log.inserted(2), *log.inserted(3)]
    (transaction,) = read_all(reader_of(start=start), events)
    assert (transaction.id, transaction.end.gtids) == (f"{UUID_1}:3", f"{UUID_1}:1-3")


def test_file_header_has_the_set_and_transactions_below_the_offset_are_skipped() -> None:
    log = Log()
    before = struct.pack("<Q", 1) + UUID_1.bytes + struct.pack("<QQQ", 1, 1, 8)
    events = [log.description(), log.event(EventType.PREVIOUS_GTIDS, before)]
    log._number = 7
    events += log.inserted(8)
    offset = log.offset
    events += log.inserted(9)
    (transaction,) = read_all(reader_of(gtids=GtidOrigin.FROM_FILE, skip_below=offset), events)
    assert (transaction.id, transaction.end.gtids) == (f"{UUID_1}:9", f"{UUID_1}:1-9")


def test_start_gtids_count_as_executed_even_if_a_header_lacks_them() -> None:
    log = Log()
    events = [log.description(), log.event(EventType.PREVIOUS_GTIDS, struct.pack("<Q", 0))]
    log._number = 5
    events += log.inserted(6)
    start = BinlogPosition("binlog.000001", 4, f"{UUID_1}:1-5")
    (transaction,) = read_all(reader_of(start=start, gtids=GtidOrigin.FROM_FILE), events)
    assert transaction.end.gtids == f"{UUID_1}:1-6"


def test_xa_in_one_phase_and_in_two() -> None:
    log = Log()
    prepare = struct.pack("<III", 1, 1, 1) + b"ab"
    xa_start, xa_end = "XA START X'61',X'62',1", "XA END X'61',X'62',1"

    def group(phases: bytes) -> list[bytes]:
        begun = [log.gtid(), log.query(xa_start), log.table(), log.insert(1), log.query(xa_end)]
        return [*begun, log.event(EventType.XA_PREPARE, phases + prepare)]

    events = [log.description(), *group(b"\1"), *group(b"\0"), *log.inserted(5)]
    events += [log.gtid(), log.query("XA COMMIT X'61',X'62',1")]
    assert [len(transaction.changes) for transaction in read_all(reader_of(), events)] == [1, 0, 1, 1]


def test_rows_prepared_before_the_log_was_opened_are_searched() -> None:
    log, asked = Log(), []

    def find(xid: Xid, before: BinlogPosition) -> tuple[RowsEvent, ...]:
        asked.append((xid, before))
        return ()

    events = [log.description(), log.gtid(), log.query("XA COMMIT X'61',X'',3")]
    (transaction,) = read_all(reader_of(find_prepared=find), events)
    assert transaction.changes == ()
    assert asked == [(Xid(3, b"a", b""), BinlogPosition(START.file, len(events[0]) + 4))]


def test_create_table_select_is_a_definition_followed_by_rows() -> None:
    log = Log()
    events = [log.description(), log.gtid(), log.query("BEGIN"), log.query("CREATE TABLE t (a INT) START TRANSACTION")]
    events += [log.table(), log.insert(1), log.xid()]
    definition, rows = read_all(reader_of(), events)
    assert definition.statement is not None
    assert definition.statement.text == "CREATE TABLE t (a INT)"
    assert (definition.id, rows.id) == (f"{UUID_1}:1/ddl", f"{UUID_1}:1")
    assert (definition.end, rows.end.gtids) == (START, f"{UUID_1}:1")


def test_only_the_second_half_of_mariadbs_long_alter_counts() -> None:
    log = Log()
    events = [log.description()]
    for number, more in enumerate((2, 8, 4), start=1):  # begun, rolled back, committed
        events.append(log.mariadb_gtid(number, flags=_STANDALONE, more=bytes([more]) + bytes(8)))
        events.append(log.query("ALTER TABLE t ADD a INT"))
    seen = read_all(reader_of(Flavor.MARIADB), events)
    assert [(transaction.id, transaction.statement is not None) for transaction in seen] == [
        ("0-1-1", False),
        ("0-1-2", False),
        ("0-1-3", True),
    ]


def test_session_settings_are_read_in_any_order_up_to_an_unknown_one() -> None:
    log = Log()
    status = (
        b"\x83\1" + struct.pack("<HH", 45, 46)  # in MariaDB 11 before the others
        + b"\0" + struct.pack("<I", 0x4000000)
        + b"\1" + struct.pack("<Q", 1 << 20)
        + b"\6\3std"
        + b"\3" + struct.pack("<HH", 2, 1)
        + b"\4" + struct.pack("<HHH", 28, 28, 8)
        + b"\5\6+02:00"
        + b"\x0b\1u\1h" + b"\x0c\1d\0"
        + b"\x0d" + (123_456).to_bytes(3, "little")
        + b"\x10\1"
        + b"\xf0whatever"
    )  # fmt: skip
    text = "ALTER TABLE t COMMENT '中'"
    body = struct.pack("<IIBHH", 1, 0, 1, 0, len(status)) + status + b"d\0" + text.encode("gbk")
    events = [log.description(), log.gtid(), log.event(EventType.QUERY, body)]
    (transaction,) = read_all(reader_of(), events)
    assert transaction.statement is not None
    session = transaction.statement.session
    assert transaction.statement.text == text
    assert (session.sql_mode, session.time_zone, session.foreign_key_checks) == (1 << 20, "+02:00", False)
    assert (session.auto_increment_increment, session.auto_increment_offset) == (2, 1)
    assert (session.client_charset, session.connection_collation, session.server_collation) == (28, 28, 8)
    assert session.explicit_defaults_for_timestamp is True
    assert session.timestamp_us == log.time * 1_000_000 + 123_456


def test_only_events_marked_ignorable_are_ignored() -> None:
    log = Log()
    events = [log.description(), log.event(99, flags=IGNORABLE), *log.inserted(1)]
    assert len(read_all(reader_of(), events)) == 1
    with pytest.raises(SourceRefused, match="type 99"):
        read_all(reader_of(), [log.description(), log.event(99)])


_REFUSED: dict[str, tuple[type[BinlakeError], str, Callable[[Log], list[bytes]]]] = {
    "a statement instead of rows": (
        SourceRefused,
        "binlog_format = ROW",
        lambda log: [log.gtid(), log.query("BEGIN"), log.query("/* x */ insert into t values (1)")],
    ),
    "load data": (SourceRefused, "LOAD DATA", lambda log: [log.gtid(), log.event(EventType.BEGIN_LOAD_QUERY)]),
    "half rolled back": (
        SourceRefused,
        "partly rolled back",
        lambda log: [*log.inserted(1)[:-1], log.query("ROLLBACK")],
    ),
    "back to a savepoint": (
        SourceRefused,
        "partly rolled back",
        lambda log: [*log.inserted(1)[:-1], log.query("ROLLBACK TO `s`")],
    ),
    "a definition after rows": (
        SourceRefused,
        "after rows",
        lambda log: [*log.inserted(1)[:-1], log.query("CREATE TABLE u (a INT)")],
    ),
    "an incident": (LostRange, "incident", lambda log: [log.event(EventType.INCIDENT, b"\1\0\0")]),
    "rows of no transaction": (WireError, "middle", lambda log: [log.table(), log.insert(1)]),
    "the end of no transaction": (WireError, "middle", lambda log: [log.xid()]),
    "rows of no table": (WireError, "table map", lambda log: [log.gtid(), log.query("BEGIN"), log.insert(1)]),
    "a checksum of an unknown kind": (WireError, "checksum algorithm 7", lambda log: [log.description(7)]),
}


@pytest.mark.parametrize("name", _REFUSED)
def test_unsupported_events_are_refused_by_name(name: str) -> None:
    kind, text, events = _REFUSED[name]
    log = Log()
    with pytest.raises(kind, match=text):
        read_all(reader_of(), [log.description(), *events(log)])


def test_error_names_its_position() -> None:
    log = Log()
    events = [log.description(), *log.inserted(1)]
    offset = log.offset
    events += [log.gtid(), log.event(99)]
    with pytest.raises(SourceRefused) as caught:
        read_all(reader_of(), events)
    assert caught.value.where["transaction"] == f"{UUID_1}:2"
    assert int(caught.value.where["offset"]) > offset
    assert caught.value.where["file"] == "binlog.000001"


def test_damaged_event_is_detected() -> None:
    log = Log()
    events = [log.description(), *log.inserted(1)]
    events[4] = events[4][:-6] + b"\xff" + events[4][-5:]
    with pytest.raises(WireError, match="checksum is wrong"):
        read_all(reader_of(), events)
    with pytest.raises(WireError, match="states"):
        reader_of().feed(events[1][:-1])


def test_transactions_configured_to_be_skipped_are_skipped() -> None:
    log = Log()
    events = [log.description(), log.gtid(), log.query("BEGIN"), log.query("UPDATE t SET a = 1"), log.xid()]
    events += [*log.inserted(1)[:-1], log.query("ROLLBACK"), *log.inserted(2)]
    passed = {f"{UUID_1}:1", f"{UUID_1}:2"}
    seen = read_all(reader_of(refuses=lambda gtid: gtid not in passed), events)
    assert [(transaction.id, len(transaction.changes)) for transaction in seen] == [
        (f"{UUID_1}:{n}", n // 3) for n in (1, 2, 3)
    ]
    with pytest.raises(SourceRefused, match="partly rolled back"):
        read_all(reader_of(refuses=lambda gtid: gtid != f"{UUID_1}:1"), events)
