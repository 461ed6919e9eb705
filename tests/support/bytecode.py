"""Compiled modules are kept: without, collection costs thrice as much, and so do the imports of each program."""

from __future__ import annotations

import os
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


def keep_bytecode() -> None:
    """Where Python is to write no bytecode beside its sources, this run and its programs write it to a folder apart."""
    if not sys.dont_write_bytecode:
        return
    sys.dont_write_bytecode = False
    sys.pycache_prefix = sys.pycache_prefix or str(REPOSITORY / ".local" / "pycache")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix
