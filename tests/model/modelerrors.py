"""What ends an attempt of the models, and how the target's own tables are called."""

from __future__ import annotations

SCHEMA = "tidb_binlog"


class Crash(Exception):
    """The process is gone."""


class Wrong(AssertionError):
    """The target is not what it must be."""
