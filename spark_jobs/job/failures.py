"""Errors of Spark as ours: those of its Python workers come back as Java text; a conflict of Delta's passes by waiting.

So does a Connect server that is away, or was restarted and does not know the session. delta-spark makes Python
exceptions of Delta's conflicts (with a Connect server: `spark_jobs.job.connect`).
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
from binlake.base.reachability import spark_unavailable
from binlake.errors import BinlakeError, Transient

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
"""What a server says of a session that it has not, because it was started anew."""


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
    """The BinlakeError hidden in a Spark exception; None when there is none."""
    if isinstance(error, BinlakeError):
        return error
    if isinstance(error, _CONFLICTS):
        return Transient(
            f"another writer changed a Delta table of the lake at the same time: {str(error).splitlines()[0]}",
            hint="the stage wrote nothing and can run again; let only Binlake maintain these tables",
        )
    found = _OURS.search(str(error))
    if found is None:
        return _server_lost(error)
    kind = getattr(errors, found.group(1), Transient)
    message, _, hint = found.group("text").partition(_HINT)
    return kind(message, hint=hint)


def _server_lost(error: Exception) -> Transient | None:
    # By name: without a Connect server, gRPC need not be installed.
    code = getattr(error, "getGrpcStatusCode", None) or getattr(error, "code", None)
    if callable(code) and getattr(code(), "name", "") == "UNAVAILABLE":
        return spark_unavailable(why="no longer answers")
    lost = _LOST.search(str(error))
    return spark_unavailable(why=f"no longer has the session: {lost.group()}") if lost else None
