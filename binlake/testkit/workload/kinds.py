"""The kinds of column that a workload can have, by name, each with a generator of values.

Values are canonical texts (see binlake.rows.codec.values); the same seed gives the same values.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

from binlake.errors import ConfigError
from binlake.rows.codec.numbers import format_double
from binlake.rows.schema import mysqltypes as t
from binlake.rows.schema.forms import CHARSET, COLLATE
from binlake.testkit.workload.definitions import Col

Value = Callable[[Random], str]
Kind = Callable[[str, int], tuple[Col, Value]]
"""Makes the column with this name, whose strings and bytes are `width` long, and the generator of its values."""

_POOL_BYTES = 1 << 16
_WORDS = "abcdefghijklmnopqrstuvwxyz ABCDEFGHIJKLMNOPQRSTUVWXYZ 0123456789 äöüß 日本語"
_POOL = "".join(Random(0).choices(_WORDS.replace(" ", ""), k=_POOL_BYTES))
_HEX = Random(1).randbytes(_POOL_BYTES).hex().upper()
_ELEMS = ("red", "green", "blue", "black")
_LONG_TEXT = 4000  # characters; a MySQL table may refuse a longer VARCHAR


def _build_text_generator(width: int) -> Value:
    if width > _POOL_BYTES // 2:
        return lambda random: (_POOL * (width // _POOL_BYTES + 2))[(at := random.randrange(_POOL_BYTES)) : at + width]
    return lambda random: _POOL[(at := random.randrange(_POOL_BYTES - width)) : at + width]


def _build_bytes_generator(width: int) -> Value:
    if width > _POOL_BYTES // 2:
        return lambda random: (_HEX * (width // _POOL_BYTES + 2))[
            (at := 2 * random.randrange(_POOL_BYTES)) : at + 2 * width
        ]
    return lambda random: _HEX[(at := 2 * random.randrange(_POOL_BYTES - width)) : at + 2 * width]


def _build_string_column(name: str, width: int) -> tuple[Col, Value]:
    if width > _LONG_TEXT:
        return _build_long_text_column(name, width)
    return Col(name, t.VARCHAR, max(width, 16), -1, charset=CHARSET, collate=COLLATE), _build_text_generator(width)


def _build_long_text_column(name: str, width: int) -> tuple[Col, Value]:
    # At 4 bytes a character, 2^14 characters exceed the 65,535 bytes of a TEXT.
    tp = t.BLOB if width < 1 << 14 else t.LONGBLOB
    return Col(
        name, tp, 65_535 if tp == t.BLOB else (1 << 32) - 1, -1, charset=CHARSET, collate=COLLATE
    ), _build_text_generator(width)


def _build_blob_column(name: str, width: int) -> tuple[Col, Value]:
    tp = t.BLOB if width < 1 << 16 else t.LONGBLOB
    return Col(name, tp, 65_535 if tp == t.BLOB else (1 << 32) - 1, -1), _build_bytes_generator(width)


def _build_plain_kind(value: Value, tp: int, flen: int, decimal: int = -1, **more: Any) -> Kind:
    return lambda name, _: (Col(name, tp, flen, decimal, **more), value)


def _build_elements_kind(tp: int, value: Value) -> Kind:
    return _build_plain_kind(value, tp, 5, -1, charset=CHARSET, collate=COLLATE, elems=_ELEMS)


def _draw_date(random: Random) -> str:
    return f"{random.randint(1971, 2037)}-{random.randint(1, 12):02d}-{random.randint(1, 28):02d}"


def _draw_time(random: Random) -> str:
    return f"{random.randint(0, 23):02d}:{random.randint(0, 59):02d}:{random.randint(0, 59):02d}"


def _draw_moment(random: Random) -> str:
    return f"{_draw_date(random)} {_draw_time(random)}.{random.randint(0, 999):03d}"


def _draw_decimal(random: Random) -> str:
    return f"{random.randint(-(10**9), 10**9)}.{random.randint(0, 99):02d}"


def _draw_double(random: Random) -> str:
    return format_double(random.randint(-(10**9), 10**9) / 8)


def _draw_json(random: Random) -> str:
    return json.dumps(
        {"a": random.randint(0, 10**6), "b": [True, None, _build_text_generator(8)(random)]}, ensure_ascii=False
    )


def _set(random: Random) -> str:
    return ",".join(elem for elem in _ELEMS if random.random() < 0.5)


KINDS: dict[str, Kind] = {
    "int": _build_plain_kind(lambda random: str(random.randint(-(2**31), 2**31 - 1)), t.LONG, 11, 0),
    "bigint": _build_plain_kind(lambda random: str(random.randint(-(2**63), 2**63 - 1)), t.LONGLONG, 20, 0),
    "ubigint": _build_plain_kind(lambda random: str(random.randint(0, 2**64 - 1)), t.LONGLONG, 20, 0, unsigned=True),
    "varchar": _build_string_column,
    "text": _build_long_text_column,
    "blob": _build_blob_column,
    "varbinary": lambda name, width: (Col(name, t.VARCHAR, max(min(width, _LONG_TEXT), 16), -1), _build_bytes_generator(
        min(width, _LONG_TEXT)
    )),
    "decimal": _build_plain_kind(_draw_decimal, t.NEWDECIMAL, 12, 2),
    "double": _build_plain_kind(_draw_double, t.DOUBLE, 22),
    "date": _build_plain_kind(_draw_date, t.DATE, 10, 0),
    "datetime": _build_plain_kind(_draw_moment, t.DATETIME, 23, 3),
    "timestamp": _build_plain_kind(_draw_moment, t.TIMESTAMP, 23, 3),
    "time": _build_plain_kind(_draw_time, t.DURATION, 10, 0),
    "year": _build_plain_kind(lambda random: str(random.randint(1901, 2155)), t.YEAR, 4, 0),
    "bit": _build_plain_kind(lambda random: f"{random.randrange(1 << 8):02X}", t.BIT, 8, 0),
    "enum": _build_elements_kind(t.ENUM, lambda random: random.choice(_ELEMS)),
    "set": _build_elements_kind(t.SET, _set),
    "json": _build_plain_kind(_draw_json, t.JSON, (1 << 32) - 1, 0),
}  # fmt: skip
"""By the name that `--columns` takes."""

SIZED = frozenset({"varchar", "text", "blob", "varbinary"})
"""Kinds among which `--row-bytes` is divided."""


def require_kind(word: str) -> Kind:
    """The kind named `word`. Raises ConfigError."""
    if word not in KINDS:
        raise ConfigError("unknown kind of column", where={"kind": word}, hint=f"one of {', '.join(KINDS)}")
    return KINDS[word]
