"""What a check found, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class CheckFinding:
    """`fail`: the feeder would stop, or lose or mix up rows; `warn`: worth knowing. `remedy`: "" if ok."""

    check: str
    verdict: Verdict
    found: str
    remedy: str = ""


def judge(check: str, is_ok: bool, found: str, remedy: str, otherwise: Verdict = "fail") -> CheckFinding:
    """The finding of a check: `otherwise` is the verdict unless `is_ok`."""
    return CheckFinding(check, "ok", found) if is_ok else CheckFinding(check, otherwise, found, remedy)
