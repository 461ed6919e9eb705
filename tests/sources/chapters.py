"""Chapters of a story: tables of one kind each, as users had them, with the statements that went wrong.

A chapter is created once and then continues at random. Its statements may be refused by the server.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

Draws = Callable[[Random], Sequence[str]]
Chapter = tuple[Sequence[str], Draws]
"""The statements that create a chapter's tables, and what draws its next ones."""
_EACH = range(12)


def draw_chapter(draw: Random, family: str) -> Chapter:
    """A chapter of a server of `family`."""
    both: list[Callable[[], Chapter]] = [
        lambda: _tell_keys(draw),
        lambda: _tell_documents(family),
        lambda: _tell_computed(draw),
        _tell_members,
        _tell_partitions,
        _tell_defaults,
        _tell_lookalikes,
        _tell_numbered,
    ]
    own = [_tell_words] if family == "mariadb" else []
    return draw.choice([*both, *own])()


def _one_of(*choices: Callable[[Random], Sequence[str]]) -> Draws:
    return lambda draw: draw.choice(choices)(draw)


def _tell_keys(story: Random) -> Chapter:
    """Composite keys of unlike types and character sets; rows come alone and go together."""
    keys = {
        "k_latin": ("VARCHAR(10) CHARACTER SET latin1", lambda n: f"'{'aäéß'[n % 4]}{n // 4}'"),
        "k_gbk": ("VARCHAR(10) CHARACTER SET gbk", lambda n: f"'{'a中文字'[n % 4]}{n // 4}'"),
        "k_bit": ("BIT(64)", lambda n: str((1 << 63) + n)),
        "k_bytes": ("VARBINARY(9)", lambda n: f"X'{n:02X}FF'"),
        "k_time": ("DATETIME(3)", lambda n: f"'2024-01-02 03:04:05.{n:03}'"),
        "k_number": ("DECIMAL(20,4)", lambda n: f"{n}.5"),
    }
    keys = dict(story.sample(list(keys.items()), 3))
    create = [f"CREATE TABLE {name} (k {kind}, n INT, v INT, PRIMARY KEY (k, n))" for name, (kind, _) in keys.items()]

    def write(draw: Random) -> list[str]:
        name = draw.choice(list(keys))
        return [f"REPLACE INTO {name} VALUES ({keys[name][1](draw.choice(_EACH))}, {draw.randrange(2)}, 1)"]

    def delete(draw: Random) -> list[str]:
        return [f"DELETE FROM {draw.choice(list(keys))} ORDER BY v, n LIMIT {draw.randint(1, 4)}"]

    return create, _one_of(write, write, write, delete)


def _tell_documents(family: str) -> Chapter:
    kind = "JSON_TYPE(doc)" if family == "mysql" else "JSON_TYPE(JSON_EXTRACT(doc, '$'))"
    documents = ('{"p": 5.0}', "1e2", "[1, 2.50, 1e30]", '{"a": {"b": -0.0}}', "9007199254740993", "null", '"x"')

    def write(draw: Random) -> list[str]:
        return [f"REPLACE INTO j (id, doc) VALUES ({draw.choice(_EACH)}, '{draw.choice(documents)}')"]

    def read(draw: Random) -> list[str]:
        return [f"UPDATE j SET doc = JSON_SET(doc, '$.p', {draw.choice(('5.0', '1', '1e3'))}) WHERE id < 6"]

    return [f"CREATE TABLE j (id INT PRIMARY KEY, doc JSON, kind VARCHAR(20) AS ({kind}) STORED)"], _one_of(write, read)


def _tell_computed(story: Random) -> Chapter:
    """Stored generated columns whose value depends on the server that computes them."""
    expressions = (
        "LENGTH(l)", "HEX(l)", "MD5(l)", "CRC32(l)", "ASCII(l)", "CONCAT(d / 3)", "CONCAT(f, '')", "CONCAT(x)",
        "CONCAT(CEIL(d))", "CONCAT(TIME(at))", "at + 0", "UPPER(l)", "d * 2",
    )  # fmt: skip
    own = list(enumerate(story.sample(expressions, 3)))
    create = [
        f"CREATE TABLE g{n} (id INT PRIMARY KEY, l VARCHAR(9) CHARACTER SET latin1, d DECIMAL(9,2), f FLOAT, x DOUBLE,"
        f" at DATETIME(3), g VARCHAR(80) AS ({one}) STORED)"
        for n, one in own
    ]

    def write(draw: Random) -> list[str]:
        values = f"'{draw.choice(('ä', 'x', 'éß'))}', {draw.choice(('1.10', '2', '-7.77'))}, 1.1, 1e15, NOW(3)"
        return [f"REPLACE INTO g{n} (id, l, d, f, x, at) VALUES ({draw.choice(_EACH)}, {values})" for n, _ in own]

    return create, write


def _tell_members() -> Chapter:
    create = ["CREATE TABLE m (id INT PRIMARY KEY, e ENUM('', 'a', '0'), s SET('x', 'y'))"]

    def write(draw: Random) -> list[str]:
        member = draw.choice(("1", "2", "3", "''"))
        return [
            "SET SESSION sql_mode = ''",
            f"REPLACE INTO m VALUES ({draw.choice(_EACH)}, {member}, {draw.randrange(4)})",
        ]

    return create, write


def _tell_partitions() -> Chapter:
    ranges = ", ".join(f"PARTITION p{n} VALUES LESS THAN ({n * 4 + 4})" for n in range(3))
    create = [
        f"CREATE TABLE p (id INT PRIMARY KEY, v INT) PARTITION BY RANGE (id) ({ranges})",
        "CREATE TABLE p_other (id INT PRIMARY KEY, v INT)",
    ]

    def write(draw: Random) -> list[str]:
        return [f"REPLACE INTO p VALUES ({draw.choice(_EACH)}, {draw.randrange(9)})" for _ in range(3)]

    def change(draw: Random) -> list[str]:
        number = draw.randrange(3)
        return draw.choice([
            [f"ALTER TABLE p TRUNCATE PARTITION p{number}"],
            ["ALTER TABLE p DROP PARTITION p2", "ALTER TABLE p ADD PARTITION (PARTITION p2 VALUES LESS THAN (12))"],
            ["ALTER TABLE p REORGANIZE PARTITION p0, p1 INTO (PARTITION p1 VALUES LESS THAN (8))"],
        ])  # fmt: skip

    return create, _one_of(write, write, write, change)


def _tell_defaults() -> Chapter:
    """Columns are added with defaults that are no text."""
    columns = (
        "VARBINARY(4) NOT NULL DEFAULT X'410042'", "BINARY(4) DEFAULT 0x4100FF", "BINARY(2) DEFAULT X'00FF'",
        "BIT(9) DEFAULT b'101'", "VARCHAR(9) CHARACTER SET latin1 DEFAULT 'ä'", "FLOAT DEFAULT 1.1",
        "DATETIME(2) NOT NULL DEFAULT '2020-01-02 03:04:05.67'", "ENUM('', 'a') NOT NULL DEFAULT ''",
    )  # fmt: skip

    def add(draw: Random) -> list[str]:
        return [f"ALTER TABLE f ADD COLUMN c{draw.randrange(99)} {draw.choice(columns)}"]

    def write(draw: Random) -> list[str]:
        return [f"REPLACE INTO f (id) VALUES ({draw.choice(_EACH)})"]

    return ["CREATE TABLE f (id INT PRIMARY KEY)"], _one_of(write, write, add)


def _tell_lookalikes() -> Chapter:
    """Tables whose names look like those of tools for online schema changes."""
    names = ("_items_new", "_items_del", "_orders_old", "_items_gho", "items")

    def write(draw: Random) -> list[str]:
        return [f"REPLACE INTO {draw.choice(names)} VALUES ({draw.choice(_EACH)}, 'x')"]

    return [f"CREATE TABLE {name} (id INT PRIMARY KEY, v VARCHAR(9))" for name in names], write


def _tell_numbered() -> Chapter:
    """A filled table without a key gets numbers that the log does not have."""
    create = ["CREATE TABLE a0 (x INT)", "INSERT INTO a0 VALUES (3), (1), (2)"]

    def number(draw: Random) -> list[str]:
        name = f"a{draw.randrange(1, 9999)}"
        return [
            f"CREATE TABLE {name} (x INT)", f"INSERT INTO {name} VALUES (3), (1), (3), (2)",
            f"ALTER TABLE {name} ADD id BIGINT AUTO_INCREMENT PRIMARY KEY", f"UPDATE {name} SET x = 9 WHERE id = 2",
        ]  # fmt: skip

    def write(draw: Random) -> list[str]:
        return [f"INSERT INTO a0 VALUES ({draw.randrange(9)})"]

    return create, _one_of(number, write)


def _tell_words() -> Chapter:
    """Statements that only MariaDB reads so."""
    create = ["CREATE TABLE w (id INT PRIMARY KEY, a DATE NOT NULL, b DATE NOT NULL)", "CREATE SEQUENCE w_numbers"]

    def write(draw: Random) -> list[str]:
        return [f"REPLACE INTO w (id, a, b) VALUES ({draw.choice(_EACH)}, '2024-01-01', '2024-02-02')"]

    def alter(draw: Random) -> list[str]:
        return draw.choice([
            ["ALTER TABLE w ADD PERIOD FOR app (a, b)"], ["ALTER TABLE w DROP PERIOD FOR app"],
            [f"ALTER TABLE w ADD COLUMN w.c{draw.randrange(99)} INT"], ["ALTER TABLE w TABLESPACE ts"],
        ])  # fmt: skip

    return create, _one_of(write, write, alter)
