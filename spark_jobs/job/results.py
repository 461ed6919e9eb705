"""A job's bounds, result and outcome. Imports no Spark, because recovery from relay files runs without it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from binlake.errors import BinlakeError, Permanent
from binlake.window.manifest import OfWindow

MORE = "more"
"""In the outcome of a window after which the process goes on: the outcome of the whole follows."""
STAGE = "stage"
"""As the value of MORE: the outcome is that of one stage of a window, not of a whole one."""
CUT = "cut_at_bytes"
"""In the detail of a landed window: it ends below the requested hi, because it reached `window.max-bytes`."""

BYTES = "bytes"
"""In the detail of a landed window: its bytes of binlogs."""


class SparkNeeded(Permanent):
    """A stage needs a Spark session in a process that may not start one. The stage can be repeated safely."""

    def __init__(self) -> None:
        super().__init__(
            "this needs Spark, but `--without-spark` or `--spark-later` forbids starting it",
            hint='omit that option (with `window.engine = "auto"` this process then runs it), or name a Connect server'
            " (`--remote`) or a master (`--master`)",
        )


@dataclass(frozen=True)
class Bounds(OfWindow):
    """The window (lo, hi] a stage works on; both are commit_ts."""

    lo: int
    hi: int


@dataclass(frozen=True)
class StageResult:
    """How a stage ended: `state` done, already, ready, blocked, waiting or skipped; bounds; rows; seconds; detail.

    `recover` has other states: recovered, nothing-to-do, pd-answers. `derived`: for the next stage in this process.
    """

    stage: str
    state: str
    lo: int
    hi: int
    rows: int = 0
    seconds: float = 0.0
    blocked_by: str = ""
    detail: Mapping[str, Any] = field(default_factory=dict)
    derived: Any = field(default=None, compare=False, repr=False)

    def to_dict(self) -> dict[str, Any]:
        """For XCom and `--output json`: commit_ts as decimal strings (invariant 12)."""
        shown = {name: value for name, value in vars(self).items() if name != "derived"}
        return {**shown, "lo": str(self.lo), "hi": str(self.hi), "detail": dict(self.detail)}


def build_outcome(results: Sequence[StageResult]) -> dict[str, Any]:
    """The outcome of a job that succeeded."""
    return {"ok": True, "results": [result.to_dict() for result in results]}


def build_error_outcome(error: BinlakeError) -> dict[str, Any]:
    """The outcome of a job that failed; `kind` tells the caller whether to retry."""
    return {"ok": False, "error": {"kind": error.kind, "class": type(error).__name__, "message": str(error)}}


def append_outcome(outcome: Mapping[str, Any], place: Path | None) -> None:
    """Add the outcome to those in the file `place`, each in its own line, if the caller named one."""
    if place is not None:
        with place.open("a", encoding="utf-8") as file:
            file.write(json.dumps(outcome) + "\n")


def write_outcome(outcome: Mapping[str, Any], place: Path | None) -> None:
    """Write the outcome as JSON to the file `place`, if the caller named one."""
    if place is not None:
        place.write_text(json.dumps(outcome), encoding="utf-8")
