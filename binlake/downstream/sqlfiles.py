"""The files of `sql/`, which lie beside the package `binlake` in a checkout and in an installation alike."""

from __future__ import annotations

from pathlib import Path

import binlake

FOLDER = Path(binlake.__file__).parent.parent / "sql"


def statements(name: str) -> list[str]:
    """The statements of `sql/<name>`, without comments. Raises FileNotFoundError."""
    text = (FOLDER / name).read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("--")]
    return [part.strip() for part in "\n".join(lines).split(";") if part.strip()]
