"""An error of the operating system about a file or a disk, for people."""

from __future__ import annotations

from binlake.errors import BinlakeError

SPACE_HINT = (
    "check that the path exists, that this user may write to it, and that its disk has space; then run it again"
)


def describe_os_error(error: OSError, text: str = "") -> BinlakeError:
    """The error with its path; `text` is used where the operating system says nothing."""
    where = {"path": error.filename} if error.filename else {}
    return BinlakeError(error.strerror or text or str(error), where=where, hint=SPACE_HINT)
