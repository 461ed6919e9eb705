"""Errors raised inside Spark's Python workers come back as Java text: find ours in it, or keep the original."""

from __future__ import annotations

import re

from binlake import errors
from binlake.errors import BinlakeError, Transient

_OURS = re.compile(r"binlake\.errors\.(\w+): (?P<text>[^\n]*)")
_HINT = " Hint: "


def translate(error: Exception) -> BinlakeError | None:
    """The BinlakeError hidden in a Spark exception; None when there is none."""
    if isinstance(error, BinlakeError):
        return error
    found = _OURS.search(str(error))
    if found is None:
        return None
    kind = getattr(errors, found.group(1), Transient)
    message, _, hint = found.group("text").partition(_HINT)
    return kind(message, hint=hint)  # type: ignore[no-any-return]
