"""A table with every column type, random rows of it, and random expressions, for the differential tests."""

from __future__ import annotations

import json
import random
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass

from pymysql.connections import Connection
from support.tabledefs import Json, col, table

from binlake.rows.codec.datum import format_double, format_float
from binlake.rows.codec.jsons import read_json, write_json
from binlake.rows.schema import mysqltypes as t
from binlake.rules.evaluate import Program
from binlake.rules.reader import ExpressionReader
from binlake.rules.sql import parse
from binlake.rules.terms import Unsupported

Draw = random.Random
UNICODE = "aAbBzZ09 _%\\'\"-.éÉßsSſçÇæÆøØıiIſΣσςαΆжЖёЁцשא中文ｱア😀🎉ǅ"


def _text(draw: Draw, most: int = 6) -> str:
    words = ["", "a", "A", "ab", "AB", "a ", " a", "a b", "10", "10 apples", "-1.5e2x", "0", "1", "1.0", "é", "E",
             "x%y", "x_y", "x\\y", "it's", "TEST", "test", "Straße", "strasse"]  # fmt: skip
    return draw.choice(words) if draw.random() < 0.6 else "".join(draw.choices(UNICODE, k=draw.randrange(most)))


def _integer(least: int, most: int) -> Callable[[Draw], str]:
    edges = [least, most, 0, 1, 2, 3, 5, 10, 99]
    return lambda draw: str(draw.choice(edges) if draw.random() < 0.7 else draw.randint(least, most))


def _decimal(whole: int, scale: int) -> Callable[[Draw], str]:
    def value(draw: Draw) -> str:
        size = draw.choice([0, 1, 10**scale, 101 * 10 ** (scale - 1), 10 ** (whole + scale) - 1, draw.randrange(9999)])
        digits = f"{size:0{scale + 1}d}"
        return f"{'-' if size and draw.random() < 0.3 else ''}{digits[:-scale]}.{digits[-scale:]}"

    return value


def _real(draw: Draw) -> float:
    return draw.choice([0.0, 1.0, -1.0, 0.5, 1.23, 2.5, 1e10, 1e-7, 10.1, 3.0, draw.uniform(-5, 5)])


def _float(draw: Draw) -> str:
    return format_float(struct.unpack("<f", struct.pack("<f", _real(draw)))[0])


def _date(draw: Draw) -> str:
    edges = ["0000-00-00", "2021-00-00", "2021-01-01", "2021-12-31", "9999-12-31", "2020-02-29"]
    some = f"2021-{draw.randint(1, 12):02d}-{draw.randint(1, 28):02d}"
    return draw.choice([*edges, some, some])


def _moment(fsp: int, zero: bool = True) -> Callable[[Draw], str]:
    def value(draw: Draw) -> str:
        date = _date(draw)
        if not zero and (date.endswith("00") or not "1971" <= date <= "2037"):
            date = "2021-06-21"
        clock = draw.choice(["00:00:00", "12:34:56", "23:59:59", f"{draw.randrange(24):02d}:00:01"])
        clock = "00:00:00" if date == "0000-00-00" else clock
        return f"{date} {clock}" + (draw.choice([".000000", ".500000", ".999999"]) if fsp else "")

    return value


def _time(fsp: int) -> Callable[[Draw], str]:
    words = ["00:00:00", "00:00:12", "-00:00:12", "838:59:59", "-838:59:59", "100:00:00", "23:59:59"]
    return lambda draw: draw.choice(words) + (draw.choice([".000000", ".250000"]) if fsp else "")


def _canonical_json(value: object) -> str:
    return read_json(write_json(json.dumps(value)), 0)[0]


def _document(draw: Draw) -> str:
    inner = draw.choice([None, True, False, 0, 1, 2, -1, 1.5, 1e20, 2**63, "x", "1", "", "a ", "é", [], [1, "x"], {}])
    shapes: list[object] = [{"a": inner}, {"a": {"b": inner}}, {"a": [inner, 2]}, {"k k": inner}, [inner], inner, {}]
    return _canonical_json(draw.choice(shapes))


@dataclass(frozen=True)
class Shape:
    """A column: its definition for Binlake, its type for the server, and values as canonical texts."""

    definition: Json
    sql: str
    draw: Callable[[Draw], str]


def _hex(text: str) -> str:
    return text.encode().hex().upper()


GENERAL = "utf8mb4_general_ci"
_NAMES = ("x-small", "Small", "ä", "10")
_LETTERS = ("a", "B", "c", "10")


def _subset(draw: Draw) -> str:
    return ",".join(name for name in _LETTERS if draw.random() < 0.4)


SHAPES = {
    "i": Shape(col("i"), "INT", _integer(-(2**31), 2**31 - 1)),
    "n": Shape(col("n", t.TINY), "TINYINT", lambda draw: str(draw.randint(-3, 4))),
    "m": Shape(col("m", t.TINY), "TINYINT", lambda draw: str(draw.randint(-3, 4))),
    "big": Shape(col("big", t.LONGLONG), "BIGINT", _integer(-(2**63), 2**63 - 1)),
    "u": Shape(col("u", t.LONGLONG, unsigned=True), "BIGINT UNSIGNED", _integer(0, 2**64 - 1)),
    "f": Shape(col("f", t.FLOAT), "FLOAT", _float),
    "r": Shape(col("r", t.DOUBLE), "DOUBLE", lambda draw: format_double(_real(draw))),
    "de": Shape(col("de", t.NEWDECIMAL, flen=10, decimal=2), "DECIMAL(10,2)", _decimal(8, 2)),
    "wide": Shape(col("wide", t.NEWDECIMAL, flen=40, decimal=12), "DECIMAL(40,12)", _decimal(28, 12)),
    "y": Shape(col("y", t.YEAR), "YEAR", lambda draw: draw.choice(["0000", "1901", "1999", "2021", "2155", "2070"])),
    "b": Shape(col("b", t.BIT, flen=9), "BIT(9)", lambda draw: f"{draw.choice([0, 1, 2, 511]):04X}"),
    "d": Shape(col("d", t.DATE), "DATE", _date),
    "dt": Shape(col("dt", t.DATETIME), "DATETIME", _moment(0)),
    "dt6": Shape(col("dt6", t.DATETIME, decimal=6), "DATETIME(6)", _moment(6)),
    "ts": Shape(col("ts", t.TIMESTAMP), "TIMESTAMP NULL", _moment(0, zero=False)),
    "tm": Shape(col("tm", t.DURATION), "TIME", _time(0)),
    "tm6": Shape(col("tm6", t.DURATION, decimal=6), "TIME(6)", _time(6)),
    "e": Shape(col("e", t.ENUM, elems=_NAMES), f"ENUM{_NAMES} COLLATE utf8mb4_bin", lambda d: d.choice(_NAMES)),
    "ec": Shape(col("ec", t.ENUM, elems=_NAMES, collate=GENERAL), f"ENUM{_NAMES}", lambda d: d.choice(_NAMES)),
    "s": Shape(col("s", t.SET, elems=_LETTERS), f"SET{_LETTERS} COLLATE utf8mb4_bin", _subset),
    "sc": Shape(col("sc", t.SET, elems=_LETTERS, collate=GENERAL), f"SET{_LETTERS}", _subset),
    "v": Shape(col("v", t.VARCHAR, flen=40), "VARCHAR(40) COLLATE utf8mb4_bin", _text),
    "w": Shape(col("w", t.BLOB), "TEXT COLLATE utf8mb4_bin", _text),
    "ci": Shape(col("ci", t.VARCHAR, flen=40, collate=GENERAL), "VARCHAR(40)", _text),
    "c": Shape(col("c", t.STRING, flen=40), "CHAR(40) COLLATE utf8mb4_bin", lambda draw: _text(draw).rstrip(" ")),
    "vb": Shape(col("vb", t.VARCHAR, flen=60, charset="binary"), "VARBINARY(60)", lambda d: _hex(_text(d))),
    "j": Shape(col("j", t.JSON), "JSON", _document),
}  # fmt: skip
TABLE = table("t", *(shape.definition for shape in SHAPES.values()))
NULL_SHARE = 0.12

Rows = list[dict[str, str | None]]


def draw_rows(draw: Draw, count: int) -> Rows:
    """Rows as canonical texts; the first is all NULL."""
    empty: dict[str, str | None] = dict.fromkeys(SHAPES)
    return [empty] + [
        {name: None if draw.random() < NULL_SHARE else shape.draw(draw) for name, shape in SHAPES.items()}
        for _ in range(count - 1)
    ]


def fill(connection: Connection, rows: Rows) -> None:
    """Create the table at the server with these rows, numbered from 0."""
    with connection.cursor() as cursor:
        cursor.execute("SET sql_mode = '', time_zone = '+00:00'")
        cursor.execute("CREATE OR REPLACE DATABASE d CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci")
        cursor.execute("USE d")
        columns = ", ".join(f"`{name}` {shape.sql}" for name, shape in SHAPES.items())
        cursor.execute(f"CREATE TABLE t (id INT PRIMARY KEY, {columns})")
        places = ", ".join(["%s"] * (len(SHAPES) + 1))
        values = [[number, *(_stored(name, row[name]) for name in SHAPES)] for number, row in enumerate(rows)]
        cursor.executemany(f"INSERT INTO t VALUES ({places})", values)
    connection.commit()


def _stored(name: str, text: str | None) -> object:
    if text is None:
        return None
    if name == "b":
        return int(text, 16)
    return bytes.fromhex(text) if name == "vb" else text


def at_server(expression: str) -> str:
    """The expression as MariaDB accepts it; MariaDB has no operators -> and ->>."""
    text = re.sub(r"(\bj\b)->>('(?:[^'\\]|\\.)*')", r"JSON_UNQUOTE(JSON_EXTRACT(\1, \2))", expression)
    return re.sub(r"(\bj\b)->('(?:[^'\\]|\\.)*')", r"JSON_EXTRACT(\1, \2)", text)


@dataclass(frozen=True)
class Ours:
    """An expression as the filter evaluates it."""

    columns: list[str]
    program: Program

    def of(self, row: dict[str, str | None]) -> int | None:
        """1, 0, or None for NULL."""
        value = self.program([row[name] for name in self.columns])
        return None if value is None else int(bool(value))


def ours(expression: str) -> Ours | None:
    """The expression as compiled by Binlake; None if it is refused."""
    reader = ExpressionReader(TABLE)
    try:
        program = reader.read_condition(parse(expression))
    except Unsupported:
        return None
    return Ours(reader.columns, program)


# Random expressions

NUMBERS = ("n", "m", "i", "big", "u", "f", "r", "de", "wide", "b")
TEXTS = ("v", "w", "c", "ci", "e", "s", "ec", "j->>'$.a'", "j->>'$.a[0]'")
_COMPARE = ("=", "<>", "<", "<=", ">", ">=", "<=>")


class Grammar:
    """Draws expressions, most of which are allowed; refused ones are valid test cases too."""

    def __init__(self, draw: Draw) -> None:
        self.draw = draw

    def condition(self, depth: int) -> str:
        """A condition."""
        kinds = [self._found, self._compared, self._texts, self._moments, self._among, self._between, self._tested]
        if depth > 0:
            kinds += [self._joined, self._joined, self._turned]
        return self.draw.choice(kinds)(depth)

    def _found(self, _: int) -> str:
        name, column = self.draw.choice((*_LETTERS, "b")), self.draw.choice(("s", "sc"))
        return f"FIND_IN_SET('{name}', {column})" + self.draw.choice(("", " > 0", " = 0", " <> 0"))

    def _joined(self, depth: int) -> str:
        words = self.draw.choices(("AND", "OR", "XOR", "&&", "||"), k=2)
        return f"{self._part(depth)} {words[0]} {self._part(depth)}" + (
            f" {words[1]} {self._part(depth)}" if self.draw.random() < 0.3 else ""
        )

    def _turned(self, depth: int) -> str:
        return f"NOT {self._part(depth)}"

    def _part(self, depth: int) -> str:
        inner = self.condition(depth - 1)
        return f"({inner})" if self.draw.random() < 0.6 else inner

    def _compared(self, depth: int) -> str:
        return f"{self.number(depth)} {self.draw.choice(_COMPARE)} {self.number(depth)}"

    def _texts(self, depth: int) -> str:
        left = self.text(depth)
        if self.draw.random() < 0.3:
            pattern = "".join(self.draw.choices(["%", "_", "a", "A", "é", "ß", " ", r"\\%", "1", "x"], k=3))
            return f"{left} {self.draw.choice(('LIKE', 'NOT LIKE'))} '{pattern}'"
        return f"{left} {self.draw.choice(_COMPARE)} {self.text(depth) if self.draw.random() < 0.4 else self._quoted()}"

    def _moments(self, depth: int) -> str:
        left, right = self.draw.choices(("d", "dt", "dt6", "ts", "tm", "tm6"), k=2)
        moments = ("'2021-06-21'", "'2021-12-31 12:34:56'", "'2021-12-31 12:34:56.5'", "'00:00:12'", "'-00:00:12.25'")
        if depth > 0 and self.draw.random() < 0.3:
            left = f"IF({self.condition(depth - 1)}, {left}, {left})"
        return f"{left} {self.draw.choice(_COMPARE)} {self.draw.choice((right, *moments))}"

    def _among(self, depth: int) -> str:
        one = self.draw.choice((self.number, self.text))
        members = ", ".join(one(0) for _ in range(self.draw.randint(1, 3)))
        return f"{one(depth)} {self.draw.choice(('IN', 'NOT IN'))} ({members})"

    def _between(self, depth: int) -> str:
        one = self.draw.choice((self.number, self.text))
        return f"{one(depth)} {self.draw.choice(('BETWEEN', 'NOT BETWEEN'))} {one(0)} AND {one(0)}"

    def _tested(self, depth: int) -> str:
        word = self.draw.choice(("IS NULL", "IS NOT NULL", "IS TRUE", "IS NOT TRUE", "IS FALSE"))
        return f"{self.number(depth) if 'NULL' not in word or self.draw.random() < 0.5 else self.text(depth)} {word}"

    def number(self, depth: int) -> str:
        """A number."""
        draw = self.draw
        if depth <= 0 or draw.random() < 0.3:
            constants = ("0", "1", "2", "-1", "1.5", "10.10", "1e0", "2.5e0", "NULL", "TRUE", "'1'", "'2.5'", "b'1'")
            return draw.choice(NUMBERS) if draw.random() < 0.6 else draw.choice(constants)
        left, right = self.number(depth - 1), self.number(depth - 1)
        forms = (
            f"{left} {draw.choice(('+', '-', '*', '/', 'DIV', '%', 'MOD'))} {right}",
            f"({left} {draw.choice(('+', '-', '*', 'DIV', '%'))} {right})",
            f"-{left}", f"ABS({left})", f"MOD({left}, {right})", f"COALESCE({left}, {right})",
            f"IFNULL({left}, {right})", f"IF({self.condition(depth - 1)}, {left}, {right})",
            f"LENGTH({self.text(depth - 1)})", f"CHAR_LENGTH({self.text(depth - 1)})",
            f"({self.condition(depth - 1)})", draw.choice(("e", "s")) + " + 0",
        )  # fmt: skip
        return draw.choice(forms)

    def text(self, depth: int) -> str:
        """A text."""
        draw = self.draw
        if depth <= 0 or draw.random() < 0.4:
            return draw.choice(TEXTS) if draw.random() < 0.75 else self._quoted()
        inner, other = self.text(depth - 1), self.text(depth - 1)
        ends = draw.choice(("", "LEADING ", "TRAILING ", "BOTH "))
        forms = (
            f"LOWER({inner})", f"UPPER({inner})", f"TRIM({inner})", f"LTRIM({inner})", f"RTRIM({inner})",
            f"TRIM({ends}{self._quoted()} FROM {inner})", f"COALESCE({inner}, {other})", f"IFNULL({inner}, {other})",
            f"IF({self.condition(depth - 1)}, {inner}, {other})", f"{draw.choice(('v', 'ci'))} COLLATE utf8mb4_bin",
        )  # fmt: skip
        return draw.choice(forms)

    def _quoted(self) -> str:
        words = (
            "",
            "a",
            "A",
            "ab",
            "a ",
            "é",
            "É",
            "Straße",
            "x%y",
            r"x\\y",
            "it''s",
            "10",
            "1",
            "-1.5",
            "Small",
            "a,B",
        )
        return f"'{self.draw.choice(words)}'"
