"""The errors that end an attempt of the models, and the names of Binlake's tables in the target."""

from __future__ import annotations

SCHEMA = "tidb_binlog"


class Crash(Exception):
    """The process died."""


class Wrong(AssertionError):
    """The target's state is wrong."""
