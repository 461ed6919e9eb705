"""A dump's data file is read as a stream, and a statement begins right behind the semicolon of the one before it."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from binlake.errors import ConfigError
from binlake.target.base import scan
from binlake.target.base.scan import read_inserts

FILE = Path("d.t.000000000.sql")


def rests(text: str) -> list[tuple[bytes, int]]:
    return [(one.rest, one.rows) for one in read_inserts(FILE, io.BytesIO(text.encode()), "t")]


@pytest.mark.parametrize("block", [1, 7, 1 << 20])
@pytest.mark.parametrize("between", ["", "\n", "-- so; (it\n", "/* is; ( */", " \n\n"])
def test_what_precedes_a_statement_is_not_part_of_it(monkeypatch: pytest.MonkeyPatch, block: int, between: str) -> None:
    monkeypatch.setattr(scan, "_BLOCK", block)
    one, other = "INSERT INTO `t` VALUES (1)", "INSERT INTO `t` VALUES ('(;'),(2)"
    found = rests(f"{between}{one};{between}SET a=1;{between}{other};{between}")
    assert found == [(b" VALUES (1)", 1), (b" VALUES ('(;'),(2)", 2)]


class Stream(io.BytesIO):
    """Counts what is read of it."""

    taken = 0

    def read(self, size: int | None = -1, /) -> bytes:
        found = super().read(size)
        self.taken += len(found)
        return found


def test_a_statement_is_given_before_the_next_ones_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of a dump may be larger than memory."""
    monkeypatch.setattr(scan, "_BLOCK", 64)
    line = b"INSERT INTO `t` VALUES (1),(2);\n"
    stream = Stream(line * 1000)
    found = read_inserts(FILE, stream, "t")
    taken = [stream.taken for _ in zip(range(200), found, strict=False)]
    assert max(each - number * len(line) for number, each in enumerate(taken)) <= 4 * 64
    assert len(taken) + sum(1 for _ in found) == 1000


def test_a_backslash_that_is_not_an_escape_is_reported_where_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "_BLOCK", 64)
    stream = Stream(b"INSERT INTO `t` VALUES ('\\d');\n" + b"INSERT INTO `t` VALUES (1),(2);\n" * 1000)
    with pytest.raises(ConfigError, match="a backslash that begins no known escape"):
        next(read_inserts(FILE, stream, "t"))
    assert stream.taken <= 4 * 64


class Broken(io.BytesIO):
    """As a file that a reader of its compression cannot read on."""

    def read(self, size: int | None = -1, /) -> bytes:
        found = super().read(size)
        if not found:
            raise OSError("CRC check failed")
        return found


def test_a_file_that_cannot_be_read_on_is_named() -> None:
    found = read_inserts(FILE, Broken(b"INSERT INTO `t` VALUES (1);\nINSERT"), "t")
    assert next(found).rows == 1
    with pytest.raises(ConfigError, match="cannot be read: CRC check failed") as error:
        next(found)
    assert error.value.where["file"] == str(FILE)


def test_a_refused_statement_is_shown_without_its_values() -> None:
    with pytest.raises(ConfigError, match="not an INSERT") as error:
        rests("UPDATE `t` SET a = 'secret' WHERE b = 1;")
    shown = str(error.value.where["statement"])
    assert shown.startswith("UPDATE `t` SET a = ")
    assert "secret" not in shown
