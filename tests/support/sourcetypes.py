"""Columns of all types that a source may have, random values for them, and lossless SQL expressions to read them."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

Draw = Callable[[random.Random], str]
"""A SQL literal."""


class Kind(NamedTuple):
    """A column's SQL type, its literals, the expression of its canonical text, and which part of a text is compared."""

    sql: str
    draw: Draw
    shown: str = "{0}"
    seen: Callable[[str], Any] = str


def kinds(server: str) -> list[Kind]:
    """All types of `server`: mysql or mariadb."""
    document = Kind("json" if server == "mysql" else "longtext", _json_literal, "CAST({0} AS CHAR)", json.loads)
    plain = [*_integers(), *_decimals(), *_floats(), *_bits(), *_temporals(), *_texts(), *_binaries(), *_choices()]
    return [*plain, document]


def text_literal(text: str) -> str:
    """A literal of any text."""
    return f"_utf8mb4 X'{text.encode().hex()}'" if text else "''"


def _integers() -> list[Kind]:
    found = []
    for word, bits in (("tinyint", 8), ("smallint", 16), ("mediumint", 24), ("int", 32), ("bigint", 64)):
        found.append(Kind(word, _whole(-1 << bits - 1, (1 << bits - 1) - 1)))
        found.append(Kind(f"{word} unsigned", _whole(0, (1 << bits) - 1)))
    return found


def _whole(low: int, high: int) -> Draw:
    def draw(dice: random.Random) -> str:
        size = dice.choice((7, 8, 14, 15, 21, 28, 35, 42, 49, 56, 57, 63, 64))
        number = dice.choice((low, high, 0, dice.getrandbits(size), -dice.getrandbits(size), dice.randint(low, high)))
        return str(min(max(number, low), high))

    return draw


def _decimals() -> list[Kind]:
    return [Kind(f"decimal({p},{s})", _decimal(p, s)) for p, s in ((10, 0), (5, 5), (20, 4), (65, 30), (18, 9), (9, 2))]


def _decimal(precision: int, scale: int) -> Draw:
    def draw(dice: random.Random) -> str:
        digits = str(dice.randrange(10 ** dice.randint(1, precision))).rjust(precision, "0")
        whole, tail = digits[: precision - scale] or "0", digits[precision - scale :]
        return dice.choice(("", "-")) + whole + (f".{tail}" if tail else "")

    return draw


def _floats() -> list[Kind]:
    # The text of a FLOAT has only 6 digits; converted to DOUBLE it shows all.
    single = Kind("float", _float(38), "CAST({0} AS DOUBLE)", lambda text: np.float32(text))
    return [single, Kind("double", _float(300), seen=float)]


def _float(power: int) -> Draw:
    def draw(dice: random.Random) -> str:
        return repr(dice.choice((0.0, 1.0, -1.5, dice.uniform(-1, 1) * 10 ** dice.randint(-power, power))))

    return draw


def _bits() -> list[Kind]:
    return [
        Kind(f"bit({n})", _whole(0, (1 << n) - 1), f"LPAD(HEX({{0}}), {(n + 7) // 8 * 2}, '0')")
        for n in (1, 7, 8, 9, 33, 64)
    ]


def _temporals() -> list[Kind]:
    found = [Kind("date", _quoted(_date)), Kind("year", lambda dice: str(dice.choice((0, 1901, 2000, 2155))))]
    for fsp in range(7):
        found.append(Kind(f"datetime({fsp})", _with_fraction(fsp, lambda dice: f"{_date(dice)} {_clock(dice)}")))
        found.append(Kind(f"timestamp({fsp}) null", _with_fraction(fsp, _stamp)))
        found.append(Kind(f"time({fsp})", _with_fraction(fsp, _time)))
    return found


def _quoted(draw: Draw) -> Draw:
    return lambda dice: f"'{draw(dice)}'"


def _date(dice: random.Random) -> str:
    odd = ("0000-00-00", "2024-00-00", "2024-02-00", "1000-01-01", "9999-12-31", "2023-02-31", "0001-01-01")
    return dice.choice((*odd, f"{dice.randint(1, 9999):04}-{dice.randint(1, 12):02}-{dice.randint(1, 28):02}"))


def _clock(dice: random.Random) -> str:
    return dice.choice(
        ("00:00:00", "23:59:59", f"{dice.randint(0, 23):02}:{dice.randint(0, 59)}:{dice.randint(0, 59)}")
    )


def _stamp(dice: random.Random) -> str:
    odd = ("1970-01-01 00:00:01", "2038-01-19 03:14:07", "2000-02-29 12:00:00", "1999-12-31 23:59:59")
    drawn = f"{dice.randint(1971, 2037)}-{dice.randint(1, 12)}-{dice.randint(1, 28)} {_clock(dice)}"
    return dice.choice((*odd, drawn, drawn))


def _time(dice: random.Random) -> str:
    odd = ("00:00:00", "838:59:58", "-838:59:58", "-00:00:00", "-00:00:01")
    return dice.choice((*odd, f"{dice.choice(('', '-'))}{dice.randint(0, 837):02}:{dice.randint(0, 59)}:00"))


def _with_fraction(fsp: int, draw: Draw) -> Draw:
    def drawn(dice: random.Random) -> str:
        text = draw(dice)
        fraction = dice.choice(("0" * fsp, "9" * fsp, str(dice.randrange(10**fsp)).rjust(fsp, "0")))
        return f"'{text}.{fraction}'" if fsp and text != "0000-00-00 00:00:00" else f"'{text}'"

    return drawn


_LETTERS = {
    "latin1": "aäöü€ß", "gbk": "a中文字", "utf8mb3": "aä中", "utf8mb4": "aä中😀", "cp1251": "aжщ", "sjis": "aあ漢ｱ",
    "ucs2": "aä中", "utf16": "aä😀", "ascii": "az",
}  # fmt: skip


def _texts() -> list[Kind]:
    found = [
        Kind(f"{word} character set {charset}", _words(letters, most))
        for charset, letters in _LETTERS.items()
        for word, most in (("char(7)", 7), ("varchar(30)", 30), ("varchar(300)", 300))
    ]
    found.append(Kind("char(200) character set utf8mb4", _words("aä中😀", 200)))
    for word, most in (("tinytext", 50), ("text", 500), ("mediumtext", 500), ("longtext", 500)):
        found.append(Kind(f"{word} character set utf8mb4", _words("aä中😀", most)))
        found.append(Kind(f"{word} character set latin1", _words("aäöü€ß", most)))
    return found


def _words(letters: str, most: int) -> Draw:
    def draw(dice: random.Random) -> str:
        return text_literal("".join(dice.choices(letters, k=dice.choice((0, 1, most, dice.randint(0, most))))))

    return draw


def _binaries() -> list[Kind]:
    words = (
        ("binary(5)", 5), ("binary(200)", 200), ("varbinary(30)", 30), ("varbinary(300)", 300), ("tinyblob", 200),
        ("blob", 500), ("mediumblob", 500), ("longblob", 500),
    )  # fmt: skip
    return [Kind(word, _bytes(most), "HEX({0})") for word, most in words]


def _bytes(most: int) -> Draw:
    def draw(dice: random.Random) -> str:
        size = dice.choice((0, 1, most, dice.randint(0, most)))
        return f"X'{dice.choice((dice.randbytes(size), bytes(size))).hex()}'" if size else "''"

    return draw


def _choices() -> list[Kind]:
    names = [f"n{n}" for n in range(64)]
    many = ",".join(f"'e{n}'" for n in range(300))
    return [
        # A server shows the error value like the empty member; the canonical text of the former is 0.
        Kind("enum('a','ä','')", lambda dice: dice.choice(("'a'", "'ä'", "''", "'unknown'")), "IF({0} = 0, '0', {0})"),
        Kind(f"enum({many})", lambda dice: str(dice.randint(1, 300))),
        *(Kind(f"set({_list(names[:n])})", _whole(0, (1 << n) - 1)) for n in (1, 8, 9, 20, 30, 64)),
    ]


def _list(names: list[str]) -> str:
    return ",".join(f"'{name}'" for name in names)


def _json_literal(dice: random.Random) -> str:
    return text_literal(json.dumps(drawn_json(dice)))


def drawn_json(dice: random.Random, depth: int = 0) -> Any:
    """A document with numbers of all sizes, long and unusual texts, and small and large containers."""
    kind = dice.randrange(9 if depth < 4 else 7)
    if kind == 7:
        return [drawn_json(dice, depth + 1) for _ in range(dice.choice((0, 1, 3, 20)))]
    if kind == 8:
        return {_key(dice): drawn_json(dice, depth + 1) for _ in range(dice.choice((0, 1, 3, 20)))}
    power = dice.choice((1, 8, 15, 16, 31, 32, 62, 63, 64))
    # TiDB prints doubles in this range with all digits, as if they were integers.
    number = dice.choice((-1, 1)) * dice.uniform(0.1, 1) * 10 ** dice.choice((dice.randint(-20, 14), 24))
    text = "".join(dice.choices('aä中😀"\\\n', k=dice.choice((0, 1, 5, 127, 128, 300))))
    signed = -dice.getrandbits(min(power, 63))
    return dice.choice((None, True, False, dice.getrandbits(power), signed, round(number, 15 - _digits(number)), text))


def _digits(number: float) -> int:
    return math.ceil(math.log10(abs(number))) if number else 0


def _key(dice: random.Random) -> str:
    return "".join(dice.choices("abä", k=dice.randint(0, 6)))
