"""Pages name only existing files."""

from __future__ import annotations

from pathlib import Path

from deploy import docslinks


def test_missing_path_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "binlake" / "rows").mkdir(parents=True)
    (tmp_path / "binlake" / "rows" / "codec.py").write_text("")
    (tmp_path / "docs").mkdir()
    page = tmp_path / "docs" / "index.md"
    page.write_text("`binlake/rows/codec.py`, `binlake/rows/`, `binlake/*/codec.py`, `codec.py`, `.local/lake`\n")
    assert docslinks.find_dead_paths(tmp_path) == []
    page.write_text("`codec.py`\n\n`binlake/rows/gone.py`, `binlake/cells/` and `gone.py`\n")
    assert docslinks.find_dead_paths(tmp_path) == [
        "docs/index.md:3: binlake/rows/gone.py",
        "docs/index.md:3: binlake/cells/",
        "docs/index.md:3: gone.py",
    ]


def test_file_that_a_drawing_names_exists(tmp_path: Path) -> None:
    (tmp_path / "binlake" / "rows").mkdir(parents=True)
    (tmp_path / "binlake" / "rows" / "codec.py").write_text("")
    (tmp_path / "docs").mkdir()
    drawing = tmp_path / "docs" / "way.svg"
    drawing.write_text("<text>codec.py  rows/codec.py</text>\n")
    assert docslinks.find_dead_paths(tmp_path) == []
    drawing.write_text("<text>codec.py</text>\n<text>cells/codec.py  gone.py</text>\n")
    assert docslinks.find_dead_paths(tmp_path) == ["docs/way.svg:2: cells/codec.py", "docs/way.svg:2: gone.py"]


def test_lines_that_git_left_of_a_conflict_are_found(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    text = "A line.\n<<<<<<< HEAD\nours\n=======\ntheirs\n>>>>>>> main\n"
    (tmp_path / "docs" / "page.md").write_text(text, encoding="utf-8")
    assert docslinks.find_merge_marks(tmp_path) == ["docs/page.md:2", "docs/page.md:6"]
