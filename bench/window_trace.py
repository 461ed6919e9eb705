"""Counts what a process does for one window: named functions, their files, and what it opens, by stage.

Only code of Binlake counts. Nothing is timed: the counts do not depend on the machine.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType

ROOT = Path(__file__).resolve().parents[1]
_OWN, _PUMPS = str(ROOT / "binlake"), str(ROOT / "binlake" / "pump_service")
"""All code that a window runs; that of pumps, which may run in the same process, is not a window's."""
_OPENS = frozenset(
    {
        "binlake/lake/opentable.py:open_known",
        "binlake/lake/opentable.py:load_table",
        "binlake/lake/controlrows.py:read_control_rows",
        "binlake/target/session/session.py:Session.__init__",
    }
)
"""What opens a table of the lake, reads a control table, or connects to the target."""


@dataclass
class WindowTrace:
    """`calls`: by `file:function`; `opens`: by stage, of the functions that open something."""

    calls: Counter[str] = field(default_factory=Counter)
    opens: Counter[str] = field(default_factory=Counter)

    @property
    def files(self) -> int:
        """The number of files with a function that was called."""
        return len({name.partition(":")[0] for name in self.calls})

    def describe(self) -> str:
        """The counts as text."""
        by_stage = ", ".join(f"{stage} {count}" for stage, count in self.opens.most_common())
        return (
            f"{len(self.calls)} functions in {self.files} files, {self.opens.total()} opens and reads of control tables"
            f" ({by_stage})"
        )


@contextmanager
def trace_window() -> Iterator[WindowTrace]:
    """Count what runs in the body, in this thread and in threads that start in it."""
    trace, names = WindowTrace(), dict[CodeType, str]()

    def find_name(code: CodeType) -> str:
        if code not in names:
            file = code.co_filename
            own = file.startswith(_OWN) and not file.startswith(_PUMPS) and not code.co_name.startswith("<")
            names[code] = f"{Path(file).relative_to(ROOT)}:{code.co_qualname}" if own else ""
        return names[code]

    def count(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and (name := find_name(frame.f_code)):
            trace.calls[name] += 1
            if name in _OPENS:
                trace.opens[_find_stage(frame)] += 1

    threading.setprofile(count)
    sys.setprofile(count)
    try:
        yield trace
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def _find_stage(frame: FrameType | None) -> str:
    """The stage in whose `run` a frame is, else `runner`."""
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.parent.name == "stages" and frame.f_code.co_name == "run":
            return path.stem
        frame = frame.f_back
    return "runner"
