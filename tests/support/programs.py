"""Programs that stand in for those that an installer looks for."""

from __future__ import annotations

from pathlib import Path


def program(path: Path, script: str) -> Path:
    """A program at `path` that a shell runs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path
