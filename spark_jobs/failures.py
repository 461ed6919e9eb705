"""Errors of Spark as ours: those of its Python workers come back as Java text; a conflict of Delta's passes by waiting.

delta-spark makes Python exceptions of Delta's conflicts (with a Connect server: `spark_jobs.session`).
"""

from __future__ import annotations

import re

from delta.exceptions import (
    ConcurrentAppendException,
    ConcurrentDeleteDeleteException,
    ConcurrentDeleteReadException,
    ConcurrentWriteException,
    DeltaConcurrentModificationException,
    MetadataChangedException,
)

from binlake import errors
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


def translate(error: Exception) -> BinlakeError | None:
    """The BinlakeError hidden in a Spark exception; None when there is none."""
    if isinstance(error, BinlakeError):
        return error
    if isinstance(error, _CONFLICTS):
        return Transient(
            f"another writer changed a Delta table of the lake meanwhile: {str(error).splitlines()[0]}",
            hint="the stage wrote nothing and may run again; keep maintenance of these tables to Binlake",
        )
    found = _OURS.search(str(error))
    if found is None:
        return None
    kind = getattr(errors, found.group(1), Transient)
    message, _, hint = found.group("text").partition(_HINT)
    return kind(message, hint=hint)  # type: ignore[no-any-return]
