"""Counts what a process does for one window: functions by name, files of code, and opens of what is outside it.

Only code of Binlake counts, in all threads. Nothing is timed: the counts do not depend on the machine.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType

ROOT = Path(__file__).resolve().parents[1]
_ROOMS = tuple(str(ROOT / room) for room in ("binlake", "spark_jobs"))
_OPENS = {
    "binlake/lake/opentable.py:open_table": "open of a lake table",
    "binlake/lake/opentable.py:load_table": "open of a lake table",
    "binlake/lake/controlrows.py:read_control_rows": "read of a control table",
}
"""What the process opens, by the function that does it and nothing else."""
_SESSIONS = "binlake/target/base/session.py:connect"


@dataclass
class WindowTrace:
    """`calls`: by `file:function`; `callers`: of opens, by `file:function` of the caller."""

    calls: Counter[str] = field(default_factory=Counter)
    callers: Counter[str] = field(default_factory=Counter)

    @property
    def functions(self) -> int:
        """The number of different functions and methods with a name."""
        return len(self.calls)

    @property
    def files(self) -> int:
        """The number of files with one of these functions."""
        return len({name.partition(":")[0] for name in self.calls})

    @property
    def opens(self) -> int:
        """Opens of lake tables and reads of control tables."""
        return sum(self.calls[name] for name in _OPENS)


@contextmanager
def trace_window() -> Iterator[WindowTrace]:
    """Count everything that runs in the body, in this and all later threads."""
    trace, names = WindowTrace(), dict[CodeType, str]()

    def find_name(code: CodeType) -> str:
        if code not in names:
            own = code.co_filename.startswith(_ROOMS) and not code.co_name.startswith("<")
            names[code] = f"{Path(code.co_filename).relative_to(ROOT)}:{code.co_qualname}" if own else ""
        return names[code]

    def count(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and (name := find_name(frame.f_code)):
            trace.calls[name] += 1
            if name in _OPENS:
                trace.callers[_find_caller(frame, find_name)] += 1

    threading.setprofile(count)
    sys.setprofile(count)
    try:
        yield trace
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def _find_caller(frame: FrameType, find_name: Callable[[CodeType], str]) -> str:
    chain, back = [find_name(frame.f_code)], frame.f_back
    while back is not None and len(chain) < 20:
        if name := find_name(back.f_code):
            chain.append(name)
        back = back.f_back
    return " < ".join(chain)
