"""The kinds of column that a workload can have, by name, each with a generator of values.

Values are canonical texts (see binlake.rows.codec.values); the same seed gives the same values.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

from binlake.errors import ConfigError
from binlake.rows.codec.floats import double_text
from binlake.rows.schema import mysqltypes as t
from binlake.rows.schema.forms import CHARSET, COLLATE
from pump_service.workload.definitions import Col

Value = Callable[[Random], str]
Kind = Callable[[str, int], tuple[Col, Value]]
"""Makes the column with this name, whose strings and bytes are `width` long, and the generator of its values."""

_POOL_BYTES = 1 << 16
_WORDS = "abcdefghijklmnopqrstuvwxyz ABCDEFGHIJKLMNOPQRSTUVWXYZ 0123456789 äöüß 日本語"
_POOL = "".join(Random(0).choices(_WORDS.replace(" ", ""), k=_POOL_BYTES))
_HEX = Random(1).randbytes(_POOL_BYTES).hex().upper()
_ELEMS = ("red", "green", "blue", "black")
_LONG_TEXT = 4000  # characters; a MySQL table may refuse a longer VARCHAR


def _text(width: int) -> Value:
    if width > _POOL_BYTES // 2:
        return lambda random: (_POOL * (width // _POOL_BYTES + 2))[(at := random.randrange(_POOL_BYTES)) : at + width]
    return lambda random: _POOL[(at := random.randrange(_POOL_BYTES - width)) : at + width]


def _bytes(width: int) -> Value:
    if width > _POOL_BYTES // 2:
        return lambda random: (_HEX * (width // _POOL_BYTES + 2))[
            (at := 2 * random.randrange(_POOL_BYTES)) : at + 2 * width
        ]
    return lambda random: _HEX[(at := 2 * random.randrange(_POOL_BYTES - width)) : at + 2 * width]


def _string(name: str, width: int) -> tuple[Col, Value]:
    if width > _LONG_TEXT:
        return _long_text(name, width)
    return Col(name, t.VARCHAR, max(width, 16), -1, charset=CHARSET, collate=COLLATE), _text(width)


def _long_text(name: str, width: int) -> tuple[Col, Value]:
    # At 4 bytes a character, 2^14 characters exceed the 65,535 bytes of a TEXT.
    tp = t.BLOB if width < 1 << 14 else t.LONGBLOB
    return Col(name, tp, 65_535 if tp == t.BLOB else (1 << 32) - 1, -1, charset=CHARSET, collate=COLLATE), _text(width)


def _blob(name: str, width: int) -> tuple[Col, Value]:
    tp = t.BLOB if width < 1 << 16 else t.LONGBLOB
    return Col(name, tp, 65_535 if tp == t.BLOB else (1 << 32) - 1, -1), _bytes(width)


def _plain(value: Value, tp: int, flen: int, decimal: int = -1, **more: Any) -> Kind:
    return lambda name, _: (Col(name, tp, flen, decimal, **more), value)


def _elements(tp: int, value: Value) -> Kind:
    return _plain(value, tp, 5, -1, charset=CHARSET, collate=COLLATE, elems=_ELEMS)


def _date(random: Random) -> str:
    return f"{random.randint(1971, 2037)}-{random.randint(1, 12):02d}-{random.randint(1, 28):02d}"


def _time(random: Random) -> str:
    return f"{random.randint(0, 23):02d}:{random.randint(0, 59):02d}:{random.randint(0, 59):02d}"


def _moment(random: Random) -> str:
    return f"{_date(random)} {_time(random)}.{random.randint(0, 999):03d}"


def _decimal(random: Random) -> str:
    return f"{random.randint(-(10**9), 10**9)}.{random.randint(0, 99):02d}"


def _double(random: Random) -> str:
    return double_text(random.randint(-(10**9), 10**9) / 8)


def _json(random: Random) -> str:
    return json.dumps({"a": random.randint(0, 10**6), "b": [True, None, _text(8)(random)]}, ensure_ascii=False)


def _set(random: Random) -> str:
    return ",".join(elem for elem in _ELEMS if random.random() < 0.5)


KINDS: dict[str, Kind] = {
    "int": _plain(lambda random: str(random.randint(-(2**31), 2**31 - 1)), t.LONG, 11, 0),
    "bigint": _plain(lambda random: str(random.randint(-(2**63), 2**63 - 1)), t.LONGLONG, 20, 0),
    "ubigint": _plain(lambda random: str(random.randint(0, 2**64 - 1)), t.LONGLONG, 20, 0, unsigned=True),
    "varchar": _string,
    "text": _long_text,
    "blob": _blob,
    "varbinary": lambda name, width: (Col(name, t.VARCHAR, max(min(width, _LONG_TEXT), 16), -1), _bytes(
        min(width, _LONG_TEXT)
    )),
    "decimal": _plain(_decimal, t.NEWDECIMAL, 12, 2),
    "double": _plain(_double, t.DOUBLE, 22),
    "date": _plain(_date, t.DATE, 10, 0),
    "datetime": _plain(_moment, t.DATETIME, 23, 3),
    "timestamp": _plain(_moment, t.TIMESTAMP, 23, 3),
    "time": _plain(_time, t.DURATION, 10, 0),
    "year": _plain(lambda random: str(random.randint(1901, 2155)), t.YEAR, 4, 0),
    "bit": _plain(lambda random: f"{random.randrange(1 << 8):02X}", t.BIT, 8, 0),
    "enum": _elements(t.ENUM, lambda random: random.choice(_ELEMS)),
    "set": _elements(t.SET, _set),
    "json": _plain(_json, t.JSON, (1 << 32) - 1, 0),
}  # fmt: skip
"""By the name that `--columns` takes."""

SIZED = frozenset({"varchar", "text", "blob", "varbinary"})
"""Kinds among which `--row-bytes` is divided."""


def kind_of(word: str) -> Kind:
    """The kind named `word`. Raises ConfigError."""
    if word not in KINDS:
        raise ConfigError("unknown kind of column", where={"kind": word}, hint=f"one of {', '.join(KINDS)}")
    return KINDS[word]
