"""A dump's data file is read as a stream, and each statement begins right after the previous semicolon."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from binlake.errors import ConfigError
from binlake.target import dump
from binlake.target.dump import read_inserts

FILE = Path("d.t.000000000.sql")


def list_statements(text: str) -> list[tuple[bytes, int]]:
    return [(one.rest, one.rows) for one in read_inserts(FILE, io.BytesIO(text.encode()), "t")]


@pytest.mark.parametrize("block", [1, 7, 1 << 20])
@pytest.mark.parametrize("between", ["", "\n", "-- so; (it\n", "/* is; ( */", " \n\n"])
def test_text_before_a_statement_is_not_part_of_it(monkeypatch: pytest.MonkeyPatch, block: int, between: str) -> None:
    monkeypatch.setattr(dump, "_BLOCK", block)
    one, other = "INSERT INTO `t` VALUES (1)", "INSERT INTO `t` VALUES ('(;'),(2)"
    found = list_statements(f"{between}{one};{between}SET a=1;{between}{other};{between}")
    assert found == [(b" VALUES (1)", 1), (b" VALUES ('(;'),(2)", 2)]


class Stream(io.BytesIO):
    """Counts the bytes that are read."""

    taken = 0

    def read(self, size: int | None = -1, /) -> bytes:
        found = super().read(size)
        self.taken += len(found)
        return found


def test_statement_is_returned_before_the_next_ones_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of a dump may be larger than memory."""
    monkeypatch.setattr(dump, "_BLOCK", 64)
    line = b"INSERT INTO `t` VALUES (1),(2);\n"
    stream = Stream(line * 1000)
    found = read_inserts(FILE, stream, "t")
    taken = [stream.taken for _ in zip(range(200), found, strict=False)]
    assert max(each - number * len(line) for number, each in enumerate(taken)) <= 4 * 64
    assert len(taken) + sum(1 for _ in found) == 1000


def test_invalid_backslash_escape_is_reported_where_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dump, "_BLOCK", 64)
    stream = Stream(b"INSERT INTO `t` VALUES ('\\d');\n" + b"INSERT INTO `t` VALUES (1),(2);\n" * 1000)
    with pytest.raises(ConfigError, match="a backslash that begins no known escape"):
        next(read_inserts(FILE, stream, "t"))
    assert stream.taken <= 4 * 64


class Broken(io.BytesIO):
    """A file that fails while it is decompressed."""

    def read(self, size: int | None = -1, /) -> bytes:
        found = super().read(size)
        if not found:
            raise OSError("CRC check failed")
        return found


def test_file_that_fails_while_reading_is_named() -> None:
    found = read_inserts(FILE, Broken(b"INSERT INTO `t` VALUES (1);\nINSERT"), "t")
    assert next(found).rows == 1
    with pytest.raises(ConfigError, match="cannot be read: CRC check failed") as error:
        next(found)
    assert error.value.where["file"] == str(FILE)


def test_refused_statement_is_shown_without_its_values() -> None:
    with pytest.raises(ConfigError, match="not an INSERT") as error:
        list_statements("UPDATE `t` SET a = 'secret' WHERE b = 1;")
    shown = str(error.value.where["statement"])
    assert shown.startswith("UPDATE `t` SET a = ")
    assert "secret" not in shown
