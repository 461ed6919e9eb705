"""docs/reference/exit-codes.md explains each exit status."""

from __future__ import annotations

import re
from pathlib import Path

from binlake.common.commandline import Exit

_PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "exit-codes.md"


def test_the_page_lists_each_exit_status_once() -> None:
    listed = re.findall(r"^\| (\d+) \|", _PAGE.read_text(), re.M)
    assert listed == [str(int(status)) for status in Exit]
