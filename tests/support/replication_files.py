"""Replication files for tests of the Airflow shell: the smallest valid one, with any section replaced."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

_PARTS = {
    "lake": 'path = "{lake}"',
    "target": 'db-type = "mariadb"\npassword = "env:BINLAKE_TEST_UNSET_PASSWORD"',
    "airflow": 'schedule = ""\nretries = 2\nretry-delay-s = 0\nwait-s = 0',
}


def write_replication(folder: Path, name: str, *, feeds: Sequence[str] = (), **sections: str | None) -> Path:
    """Write `<folder>/<name>.toml`; a section given as text replaces the default one, None omits it."""
    parts = {key: text.format(lake=folder / "lake") for key, text in _PARTS.items()}
    parts.update({key.replace("_", "-"): text for key, text in sections.items() if text is not None})
    wanted = {key: text for key, text in parts.items() if sections.get(key, text) is not None}
    body = "\n".join(f"[{key}]\n{text}\n" for key, text in wanted.items())
    body += "".join(f"[[feed]]\n{text}\n" for text in feeds)
    path = folder / f"{name}.toml"
    path.write_text(f'name = "{name}"\n{body}', encoding="utf-8")
    return path
