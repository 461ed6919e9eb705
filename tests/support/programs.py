"""Fake programs that an installer finds instead of the real ones."""

from __future__ import annotations

from pathlib import Path


def program(path: Path, script: str) -> Path:
    """Make an executable at `path` with the shell commands `text`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path
