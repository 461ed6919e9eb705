"""Docstrings and comments name only what exists."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.docnames import find_unknown_names

_CODE = '''
"""{text}"""


class Base:
    """A base."""

    depth: int = 0


class Reader(Base):
    """A reader."""

    def __init__(self) -> None:
        self.rows = 0

    def read_rows(self) -> int:
        """The rows."""
        return self.rows


def build_reader() -> Reader:
    """A reader."""
    return Reader()
'''


@pytest.mark.parametrize(
    "text",
    [
        "Reader.read_rows, `Reader.rows` and ``Reader.depth`` of its base",
        "`binlake.rows`, `binlake.rows.build_reader`, `binlake.rows.Reader.read_rows`, `binlake.commands`",
        "`build_reader`, `build_reader()`, `source_name` of the configuration, `spark.sql.ansi`, Decimal.quantize",
        "`binlake.spark_jobs.stages.STAGE` stands for several",
    ],
)
def test_existing_names_pass(tmp_path: Path, text: str) -> None:
    assert _find(tmp_path, text) == []


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("see Reader.rows_left", "Reader.rows_left"),
        ("`Reader.segments`", "Reader.segments"),
        ("`binlake.rows.find_reader`", "binlake.rows.find_reader"),
        ("`binlake.rows.Reader.segments`", "binlake.rows.Reader.segments"),
        ("`binlake.cells`", "binlake.cells"),
        ("as ``find_reader`` does", "find_reader"),
        ("as `reread()` does", "reread"),
    ],
)
def test_missing_names_are_listed_with_their_line(tmp_path: Path, text: str, name: str) -> None:
    assert _find(tmp_path, text) == [f"binlake/rows.py:2: {name}"]


def test_comments_are_read_too(tmp_path: Path) -> None:
    assert _find(tmp_path, "Rows.", "x = 1  # as `find_reader` does\n") == ["binlake/rows.py:25: find_reader"]


def _find(root: Path, text: str, code: str = "") -> list[str]:
    (root / "binlake").mkdir()
    (root / "binlake" / "rows.py").write_text(_CODE.format(text=text) + code)
    (root / "pyproject.toml").write_text('source_name = "a"\n[project.entry-points."binlake.commands"]\n')
    return find_unknown_names(root)
