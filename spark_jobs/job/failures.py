"""Translates errors of Spark, and of the lake's storage, into Binlake's.

Binlake's own errors in tasks are results of the tasks (`binlake.spark_jobs.engine.spark`). What is left of Spark are
errors of a Connect server that is unreachable or was restarted and no longer knows the session; they are temporary.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from binlake.common.reachability import build_spark_unavailable_error
from binlake.errors import BinlakeError, LostRange, Transient
from binlake.lake.damage import is_storage_error, translate_storage_error

_LOST = re.compile(r"INVALID_HANDLE\.(SESSION_\w+|OPERATION_NOT_FOUND)")
"""The answer of a restarted server for a session that it does not know."""


@contextmanager
def translate_errors(lake: str = "") -> Iterator[None]:
    """Raise what `translate` finds in an exception, else the exception itself. `lake`: the path of its folder."""
    try:
        yield
    except Exception as error:
        ours = translate(error, lake)
        if ours is None or ours is error:
            raise
        raise ours from error


def translate(error: Exception, lake: str = "") -> BinlakeError | None:
    """The BinlakeError for an exception; None for a fault of the program."""
    if isinstance(error, BinlakeError):
        return error
    return _detect_lost_server(error) or _detect_storage_error(error, lake)


def _detect_storage_error(error: Exception, lake: str) -> BinlakeError | None:
    """The error for people if the lake's disk or one of its files failed; None for a fault of the program."""
    ours = translate_storage_error(error)
    if ours is None or not (isinstance(ours, LostRange) or is_storage_error(error)):
        return None
    return ours if ours.where or not lake else type(ours)(ours.message, hint=ours.hint, where={"lake": lake})


def _detect_lost_server(error: Exception) -> Transient | None:
    # By name: without a Connect server, gRPC need not be installed.
    code = getattr(error, "getGrpcStatusCode", None) or getattr(error, "code", None)
    if callable(code) and getattr(code(), "name", "") == "UNAVAILABLE":
        return build_spark_unavailable_error(why="no longer answers")
    lost = _LOST.search(str(error))
    return build_spark_unavailable_error(why=f"no longer has the session: {lost.group()}") if lost else None
