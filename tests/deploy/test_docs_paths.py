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
