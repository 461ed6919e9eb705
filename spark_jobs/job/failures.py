"""Translates errors of Spark into Binlake's.

Errors of Spark's Python workers arrive as Java text. Two errors are temporary: a Delta commit conflict, and a Connect
server that is unreachable or was restarted and no longer knows the session. delta-spark turns Delta's conflicts into
Python exceptions (with a Connect server: `spark_jobs.engine.connect`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from delta.exceptions import (
    ConcurrentAppendException,
    ConcurrentDeleteDeleteException,
    ConcurrentDeleteReadException,
    ConcurrentWriteException,
    DeltaConcurrentModificationException,
    MetadataChangedException,
)

from binlake import errors
from binlake.base.reachability import make_spark_unavailable_error
from binlake.errors import BinlakeError, LostRange, Transient
from binlake.lake.damage import is_storage_error, translate_storage_error

_OURS = re.compile(r"binlake\.errors\.(\w+): (?P<text>[^\n]*)")
_CONFLICTS = (
    ConcurrentAppendException,
    ConcurrentDeleteDeleteException,
    ConcurrentDeleteReadException,
    ConcurrentWriteException,
    DeltaConcurrentModificationException,
    MetadataChangedException,
)
_HINT = " Hint: "
_LOST = re.compile(r"INVALID_HANDLE\.(SESSION_\w+|OPERATION_NOT_FOUND)")
"""The answer of a restarted server for a session that it does not know."""


@contextmanager
def translate_errors() -> Iterator[None]:
    """Raise what `translate` finds in an exception, else the exception itself."""
    try:
        yield
    except Exception as error:
        ours = translate(error)
        if ours is None or ours is error:
            raise
        raise ours from error


def translate(error: Exception) -> BinlakeError | None:
    """The BinlakeError contained in a Spark exception; None if it contains none."""
    if isinstance(error, BinlakeError):
        return error
    if isinstance(error, _CONFLICTS):
        return Transient(
            f"another writer changed a Delta table of the lake at the same time: {str(error).splitlines()[0]}",
            hint="the stage wrote nothing and can run again; let only Binlake maintain these tables",
        )
    match = _OURS.search(str(error))
    if match is None:
        return _detect_lost_server(error) or _detect_storage_error(error)
    kind = getattr(errors, match.group(1), Transient)
    message, _, hint = match.group("text").partition(_HINT)
    return kind(message, hint=hint)


def _detect_storage_error(error: Exception) -> BinlakeError | None:
    """The error for people if the lake's disk or one of its files failed; None for a fault of the program."""
    ours = translate_storage_error(error)
    return ours if isinstance(ours, LostRange) or is_storage_error(error) else None


def _detect_lost_server(error: Exception) -> Transient | None:
    # By name: without a Connect server, gRPC need not be installed.
    code = getattr(error, "getGrpcStatusCode", None) or getattr(error, "code", None)
    if callable(code) and getattr(code(), "name", "") == "UNAVAILABLE":
        return make_spark_unavailable_error(why="no longer answers")
    lost = _LOST.search(str(error))
    return make_spark_unavailable_error(why=f"no longer has the session: {lost.group()}") if lost else None
