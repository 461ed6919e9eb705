"""Events of statements: QUERY, with the settings of its session and its role in a transaction, and XA PREPARE.

The name of a two-phase transaction tells to which XA PREPARE a later XA COMMIT refers.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from enum import Enum
from typing import Any, NamedTuple

from binlake.errors import SchemaError, WireError
from binlake.mysqlbinlog.charsets import decode_text
from binlake.mysqlbinlog.events.header import HEADER_BYTES, uncompress_mariadb
from binlake.mysqlbinlog.model import Flavor, LoggedSession, LoggedStatement

_POST_HEADER = struct.Struct("<IIBHH")
_NO_FOREIGN_KEY_CHECKS = 0x4000000
_RELAXED_UNIQUE_CHECKS = 0x8000000
_EXPLICIT_DEFAULTS_FOR_TIMESTAMP = 0x1000000  # MariaDB's; MySQL has a separate variable
_UTF8MB4 = 45
_BEGIN = b"\0BEGIN"
_TOO_MANY_DATABASES = 254
"""The count of changed databases if there are too many to list."""
# A comment with `!` or `M!` is code: its contents were executed.
_LEADING = re.compile(r"(?:\s+|--[ \t][^\n]*\n|#[^\n]*\n|/\*(?!!|M!).*?\*/|/\*M?!\d*)*", re.DOTALL)
_WORDS = re.compile(r"(\w+|\()\s*(\w*)")
_Reader = Callable[[bytes, int, dict[str, Any]], int]
"""Reads one variable at an offset into the settings; returns the offset after it."""
_PREPARE = struct.Struct("<BIII")
_XID = re.compile(r"(?i)^\s*XA\s+\w+\s+X'([0-9a-f]*)'\s*,\s*X'([0-9a-f]*)'\s*,\s*(\d+)")


class StatementRole(Enum):
    """The role of a statement in the log."""

    BEGIN = "begin"
    COMMIT = "commit"
    ROLLBACK = "rollback"
    ROLLBACK_TO = "rollback to savepoint"
    NEUTRAL = "savepoint, XA START or XA END"
    XA_COMMIT = "XA COMMIT"
    XA_ROLLBACK = "XA ROLLBACK"
    ROWS_AS_TEXT = "a change of rows as text"
    DEFINITION = "everything else"


def read_query(event: bytes, time: int, flavor: Flavor, *, is_compressed: bool = False) -> LoggedStatement:
    """The statement of a QUERY event without checksum; `time`: seconds, of its header. Raises WireError."""
    _, _, db_size, _, status_size = _POST_HEADER.unpack_from(event, HEADER_BYTES)
    at = HEADER_BYTES + _POST_HEADER.size
    settings = _read_status(event[at : at + status_size], flavor)
    at += status_size
    db, at = event[at : at + db_size].decode("utf-8"), at + db_size + 1
    raw = uncompress_mariadb(event[at:]) if is_compressed else event[at:]
    settings["timestamp_us"] = time * 1_000_000 + settings.pop("microseconds", 0)
    session = LoggedSession(**settings)
    try:
        return LoggedStatement(db, decode_text(raw, session.client_charset or _UTF8MB4), session)
    except (WireError, SchemaError) as error:
        return LoggedStatement(db, raw.decode("utf-8", "backslashreplace"), session, unreadable=error)


def is_begin(event: bytes) -> bool:
    """Whether the statement is BEGIN, as servers write it before rows; its settings do not matter."""
    if not event.endswith(_BEGIN):
        return False
    _, _, db_size, _, status_size = _POST_HEADER.unpack_from(event, HEADER_BYTES)
    return len(event) == HEADER_BYTES + _POST_HEADER.size + int(status_size) + int(db_size) + len(_BEGIN)


_FIRST_WORDS = {
    "BEGIN": StatementRole.BEGIN,
    "COMMIT": StatementRole.COMMIT,
    "ROLLBACK": StatementRole.ROLLBACK,
    "SAVEPOINT": StatementRole.NEUTRAL,
    "RELEASE": StatementRole.NEUTRAL,
    **dict.fromkeys(
        ("INSERT", "UPDATE", "DELETE", "REPLACE", "LOAD", "CALL", "DO", "SELECT", "WITH", "("),
        StatementRole.ROWS_AS_TEXT,
    ),
}
_XA_WORDS = {
    "START": StatementRole.NEUTRAL,
    "BEGIN": StatementRole.NEUTRAL,
    "END": StatementRole.NEUTRAL,
    "COMMIT": StatementRole.XA_COMMIT,
    "ROLLBACK": StatementRole.XA_ROLLBACK,
}


def find_role(text: str) -> StatementRole:
    """The role of the statement in its transaction."""
    words = _WORDS.match(text, _LEADING.match(text).end())  # type: ignore[union-attr]
    if words is None:
        return StatementRole.DEFINITION
    first, second = words[1].upper(), words[2].upper()
    if first == "XA":
        return _XA_WORDS.get(second, StatementRole.DEFINITION)
    if first == "ROLLBACK" and second == "TO":
        return StatementRole.ROLLBACK_TO
    return _FIRST_WORDS.get(first, StatementRole.DEFINITION)


def is_of_temporary_table(text: str) -> bool:
    """Whether the statement creates or drops a temporary table."""
    words = _WORDS.match(text, _LEADING.match(text).end())  # type: ignore[union-attr]
    return words is not None and words[2].upper() == "TEMPORARY"


def _read_status(data: bytes, flavor: Flavor) -> dict[str, Any]:
    """The session's settings. An unknown variable ends them, since its length is unknown."""
    settings: dict[str, Any] = {}
    at = 0
    try:
        while at < len(data):
            reader = _STATUS[flavor].get(data[at])
            if reader is None:
                break
            at = reader(data, at + 1, settings)
    except (IndexError, struct.error):
        raise WireError("the settings of a statement's session end inside one of them") from None
    return settings


def _read_flags(data: bytes, at: int, settings: dict[str, Any]) -> int:
    flags = int.from_bytes(data[at : at + 4], "little")
    settings["foreign_key_checks"] = not flags & _NO_FOREIGN_KEY_CHECKS
    settings["unique_checks"] = not flags & _RELAXED_UNIQUE_CHECKS
    return at + 4


def _read_mariadb_flags(data: bytes, at: int, settings: dict[str, Any]) -> int:
    flags = int.from_bytes(data[at : at + 4], "little")
    settings["explicit_defaults_for_timestamp"] = bool(flags & _EXPLICIT_DEFAULTS_FOR_TIMESTAMP)
    return _read_flags(data, at, settings)


def _read_number(name: str, width: int) -> _Reader:
    def read(data: bytes, at: int, settings: dict[str, Any]) -> int:
        settings[name] = int.from_bytes(data[at : at + width], "little")
        return at + width

    return read


def _read_numbers(names: tuple[str, ...]) -> _Reader:
    def read(data: bytes, at: int, settings: dict[str, Any]) -> int:
        settings.update(zip(names, struct.unpack_from(f"<{len(names)}H", data, at), strict=True))
        return at + 2 * len(names)

    return read


def _read_time_zone(data: bytes, at: int, settings: dict[str, Any]) -> int:
    end = at + 1 + data[at]
    settings["time_zone"] = data[at + 1 : end].decode("utf-8")
    return end


def _read_explicit_defaults(data: bytes, at: int, settings: dict[str, Any]) -> int:
    settings["explicit_defaults_for_timestamp"] = bool(data[at])
    return at + 1


def _skip(width: int) -> _Reader:
    return lambda _data, at, _settings: at + width


def _skip_text(after: int, texts: int = 1) -> _Reader:
    def read(data: bytes, at: int, _: dict[str, Any]) -> int:
        for _text in range(texts):
            at += 1 + data[at]
        return at + after

    return read


def _skip_databases(data: bytes, at: int, _: dict[str, Any]) -> int:
    count, at = data[at], at + 1
    for _name in range(0 if count == _TOO_MANY_DATABASES else count):
        at = data.index(b"\0", at) + 1
    return at


def _skip_gtid_flags(data: bytes, at: int, _: dict[str, Any]) -> int:
    # The second half of an ALTER refers to its first half.
    return at + (9 if data[at] & 0b1100 else 1)


def _skip_collations(data: bytes, at: int, _: dict[str, Any]) -> int:
    return at + 1 + 4 * data[at]


_COMMON_STATUS: dict[int, _Reader] = {
    0: _read_flags,
    1: _read_number("sql_mode", 8),
    2: _skip_text(1),  # catalog, old
    3: _read_numbers(("auto_increment_increment", "auto_increment_offset")),
    4: _read_numbers(("client_charset", "connection_collation", "server_collation")),
    5: _read_time_zone,
    6: _skip_text(0),  # catalog
    7: _skip(2),  # lc_time_names
    8: _read_number("database_collation", 2),
    9: _skip(8),  # tables of a multi-table UPDATE
    10: _skip(4),  # size at the source
    11: _skip_text(0, texts=2),  # invoker
    12: _skip_databases,
    13: _read_number("microseconds", 3),
    16: _read_explicit_defaults,
    17: _skip(8),  # XID of a DDL
    18: _read_number("utf8mb4_collation", 2),
    19: _skip(1),  # sql_require_primary_key
    20: _skip(1),  # default_table_encryption
    128: _read_number("microseconds", 3),
    129: _skip(8),  # MariaDB's XID
    130: _skip_gtid_flags,
    131: _skip_collations,
}
_STATUS = {Flavor.MYSQL: _COMMON_STATUS, Flavor.MARIADB: {**_COMMON_STATUS, 0: _read_mariadb_flags}}


class Xid(NamedTuple):
    """The id of a two-phase transaction."""

    format_id: int
    gtrid: bytes
    bqual: bytes

    def __str__(self) -> str:
        return f"X'{self.gtrid.hex()}',X'{self.bqual.hex()}',{self.format_id}"


def read_prepare(event: bytes) -> tuple[Xid, bool]:
    """The transaction that an XA_PREPARE event (without checksum) ends, and whether it is committed in one phase."""
    one_phase, format_id, gtrid_size, bqual_size = _PREPARE.unpack_from(event, HEADER_BYTES)
    at = HEADER_BYTES + _PREPARE.size
    return Xid(format_id, event[at : at + gtrid_size], event[at + gtrid_size : at + gtrid_size + bqual_size]), bool(
        one_phase
    )


def parse_xid(text: str) -> Xid:
    """The transaction that `XA COMMIT X'61',X'',1` names; the servers log them in this form. Raises WireError."""
    match = _XID.match(text)
    if match is None:
        raise WireError(f"{text!r} does not name a transaction")
    return Xid(int(match[3]), bytes.fromhex(match[1]), bytes.fromhex(match[2]))
