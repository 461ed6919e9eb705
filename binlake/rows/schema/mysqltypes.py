"""MySQL column type codes and flags as in TiDB's TableInfo JSON (tidb-binlog 1.13)."""

from __future__ import annotations

TINY, SHORT, LONG, FLOAT, DOUBLE, NULL = 1, 2, 3, 4, 5, 6
TIMESTAMP, LONGLONG, INT24, DATE, DURATION, DATETIME, YEAR, NEWDATE = 7, 8, 9, 10, 11, 12, 13, 14
VARCHAR, BIT, JSON, NEWDECIMAL, ENUM, SET = 15, 16, 245, 246, 247, 248
TINYBLOB, MEDIUMBLOB, LONGBLOB, BLOB, VARSTRING, STRING = 249, 250, 251, 252, 253, 254

INTEGERS = frozenset({TINY, SHORT, LONG, LONGLONG, INT24})
BLOBS = frozenset({TINYBLOB, MEDIUMBLOB, LONGBLOB, BLOB})
STRINGS = BLOBS | {VARCHAR, VARSTRING, STRING}
DATES = frozenset({DATE, NEWDATE})
MOMENTS = frozenset({DATETIME, TIMESTAMP})

FLAG_NOT_NULL, FLAG_PRIMARY, FLAG_UNIQUE, FLAG_UNSIGNED = 1, 2, 4, 32
FLAG_ZEROFILL, FLAG_BINARY, FLAG_AUTO_INCREMENT, FLAG_ON_UPDATE_NOW = 64, 128, 512, 8192

UNSPECIFIED_LENGTH = -1

_BLOB_NAMES = {TINYBLOB: "tiny", BLOB: "", MEDIUMBLOB: "medium", LONGBLOB: "long"}
_NAMES = {
    TINY: "tinyint",
    SHORT: "smallint",
    LONG: "int",
    INT24: "mediumint",
    LONGLONG: "bigint",
    FLOAT: "float",
    DOUBLE: "double",
    TIMESTAMP: "timestamp",
    DATE: "date",
    NEWDATE: "date",
    DURATION: "time",
    DATETIME: "datetime",
    YEAR: "year",
    BIT: "bit",
    JSON: "json",
    NEWDECIMAL: "decimal",
    ENUM: "enum",
    SET: "set",
}


def look_up_type_name(code: int, binary: bool) -> str:
    """The SQL keyword of type `code`, without lengths (`varbinary`, `mediumtext`, `bigint`); `binary` = charset binary.

    Raises KeyError for a code that no column of TiDB <= v8.3 has.
    """
    if code in _BLOB_NAMES:
        return _BLOB_NAMES[code] + ("blob" if binary else "text")
    if code in (VARCHAR, VARSTRING):
        return "varbinary" if binary else "varchar"
    if code == STRING:
        return "binary" if binary else "char"
    return _NAMES[code]
