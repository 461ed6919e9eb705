"""What a check of the doctor is, and what it finds."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from binlake.config import Replication
from binlake.config.load import load_replication
from binlake.errors import BinlakeError

Verdict = Literal["ok", "warning", "failure", "not applicable"]


@dataclass(frozen=True)
class DoctorLine:
    """One line of the answer. `warning`: it works, but not well or not for long; `remedy`: a command or setting."""

    check: str
    verdict: Verdict
    found: str
    remedy: str = ""


def judge(check: str, is_ok: bool, found: str, remedy: str, otherwise: Verdict = "failure") -> DoctorLine:
    """The finding of a check: `otherwise` is the verdict unless `is_ok`."""
    return DoctorLine(check, "ok", found) if is_ok else DoctorLine(check, otherwise, found, remedy)


def explain_error(check: str, error: BinlakeError, remedy: str = "") -> DoctorLine:
    """A failure with the error's text; its hint is the remedy, else `remedy`."""
    place = " ".join(f"{key}={value}" for key, value in error.where.items())
    found = f"{error.message} [{place}]" if place else error.message
    return DoctorLine(check, "failure", " ".join(found.split()), error.hint or remedy)


@dataclass(frozen=True)
class Patient:
    """What is examined: a replication's file, which is valid; `feeder`: feeder.toml, if any; `remote`: Spark Connect's
    URL, if given. `replication` has no passwords."""

    file: Path
    replication: Replication
    feeder: Path | None = None
    remote: str = ""

    @cached_property
    def unlocked(self) -> Replication:
        """The replication with its passwords. Raises ConfigError if a variable of the environment is not set."""
        return load_replication(self.file)


@dataclass(frozen=True)
class Check:
    """A check of one `subject`, such as the target; `run` may hang, and may raise BinlakeError."""

    subject: str
    name: str
    run: Callable[[], Iterable[DoctorLine]]


ListChecks = Callable[[Patient], list[Check]]
"""A room's or shell's checks of a patient: an entry point of the group `binlake.checks`."""
