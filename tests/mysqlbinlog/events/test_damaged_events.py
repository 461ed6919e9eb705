"""Events that are cut or changed undetected by a checksum are read, or are an error that names the position."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterable, Mapping
from uuid import UUID

import pytest
from support.binlogevents import START, Log, reader_of
from support.examples import examples

from binlake.errors import BinlakeError, WireError
from binlake.mysqlbinlog.events.gtid import MySqlGtidSet, encode_mysql_set
from binlake.mysqlbinlog.events.header import HEADER_BYTES, EventType
from binlake.mysqlbinlog.model import Flavor

_UUID = "11111111-2222-3333-4444-555555555555"
_STATUS = b"\0\0\0\0\0\1" + bytes(8) + b"\4" + struct.pack("<3H", 45, 45, 45) + b"\x05\6+05:00\x0c\1d\0"


def _mysql() -> list[bytes]:
    log = Log(checksums=False)
    done = encode_mysql_set(MySqlGtidSet.parse(f"{_UUID}:1-5:9:tag:1-3"))
    inner = Log(checksums=False)
    inside = b"".join([inner.query("BEGIN"), inner.table(), inner.insert(7), inner.xid()])
    tagged = b"\2\x7e\0\0\0\2" + b"".join(_varlen(byte) for byte in UUID(_UUID).bytes) + b"\4\x14\6\6tag"
    return [
        log.event(EventType.PREVIOUS_GTIDS, done),
        *log.inserted(1),
        log.event(EventType.GTID_TAGGED, tagged),
        log.query("ALTER TABLE t ADD c INT", status=_STATUS),
        log.gtid(),
        log.event(EventType.TRANSACTION_PAYLOAD, b"\2\3\xfc\xff\0\0" + inside),
        log.gtid(),
        log.query("BEGIN"),
        log.table(),
        log.insert(2),
        log.event(EventType.XA_PREPARE, struct.pack("<BIII", 0, 1, 1, 1) + b"ab"),
        log.gtid(),
        log.query("XA COMMIT X'61',X'62',1"),
    ]


def _varlen(byte: int) -> bytes:
    return bytes((byte << 1,)) if byte < 0x80 else struct.pack("<H", byte << 2 | 1)


def _mariadb() -> list[bytes]:
    log = Log(checksums=False)
    xid = struct.pack("<IBB", 1, 1, 1) + b"ab"
    return [
        log.mariadb_gtid(1),
        log.table(),
        log.insert(1),
        log.xid(),
        log.mariadb_gtid(2, flags=64, more=xid),
        log.table(),
        log.insert(2),
        log.event(EventType.XA_PREPARE, struct.pack("<BIII", 0, 1, 1, 1) + b"ab"),
        log.mariadb_gtid(3, flags=1),
        log.query("ALTER TABLE t ADD c INT", status=_STATUS),
    ]


def _feed(flavor: Flavor, events: Iterable[bytes]) -> None:
    reader = reader_of(flavor, START, find_prepared=lambda *_: ())
    for event in events:
        reader.feed(event)


def _damaged(event: bytes, dice: random.Random) -> bytes:
    if dice.random() < 0.5:
        cut = event[: dice.randrange(HEADER_BYTES, len(event))]
        return cut[:9] + struct.pack("<I", len(cut)) + cut[13:]
    body = bytearray(event)
    for _ in range(dice.choice((1, 3))):
        body[dice.randrange(HEADER_BYTES, len(body))] = dice.choice((0, 252, 253, 254, 255, dice.randrange(256)))
    return bytes(body)


_LOGS = {Flavor.MYSQL: _mysql(), Flavor.MARIADB: _mariadb()}


@pytest.mark.drawn
@pytest.mark.parametrize("flavor", Flavor)
def test_damaged_event_is_read_or_refused_with_its_position(flavor: Flavor) -> None:
    events = _LOGS[flavor]
    _feed(flavor, events)
    refused = list[tuple[int, Mapping[str, object]]]()
    for seed in range(examples(1500)):
        dice = random.Random(seed)
        index = dice.randrange(len(events))
        try:
            _feed(flavor, [*events[:index], _damaged(events[index], dice), *events[index + 1 :]])
        except BinlakeError as error:
            refused.append((events[index][4], error.where))
    assert all(where["file"] == START.file and "offset" in where for _, where in refused)
    assert {kind for kind, _ in refused} >= {event[4] for event in events} - {EventType.XID, EventType.PREVIOUS_GTIDS}


@pytest.mark.parametrize("size", [1 << 45, (1 << 64) - 1, 1000])
def test_payload_with_a_wrong_size_is_refused(size: int) -> None:
    log = Log(checksums=False)
    squeezed = b"\x28\xb5\x2f\xfd\x20\x03\x19\x00\x00abc"
    fields = b"\2\1\0\3\x09\xfe" + struct.pack("<Q", size) + b"\0"
    events = [log.gtid(), log.event(EventType.TRANSACTION_PAYLOAD, fields + squeezed)]
    with pytest.raises(WireError, match=r"a compressed transaction cannot be read.*offset"):
        _feed(Flavor.MYSQL, events)
