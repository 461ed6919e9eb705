"""What a check of the doctor is and finds, and the checks that need nothing of a replication: this machine, clocks."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from binlake.common.installation import EXTRAS, list_versions, require_one_pyspark
from binlake.config import Replication
from binlake.config.load import load_replication
from binlake.errors import BinlakeError, ConfigError

Verdict = Literal["ok", "warning", "failure", "not applicable"]
_NOTHING_S, _SMALL_S, _GREAT_S = 0.1, 1.0, 60.0
_LITTLE, _TOO_LITTLE = 10 << 30, 1 << 30
_GIB = 1 << 30


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


def measure_skew_s(ask: Callable[[], float]) -> float:
    """By how many seconds the clock that `ask` reads (Unix seconds) is ahead of ours, as far as the answer shows.

    The answer is read somewhere between the request and its arrival, so a difference within that time is none.
    """
    before = time.time()
    there = ask()
    after = time.time()
    return max(there - after, 0.0) or min(there - before, 0.0)


def check_skew(check: str, skew_s: float, where: str) -> DoctorLine:
    """The finding for the clock of `where`."""
    way = "ahead of" if skew_s > 0 else "behind"
    found = f"{where} is {abs(skew_s):.1f} s {way} this machine"
    if abs(skew_s) < _NOTHING_S:
        found = f"{where} and this machine agree"
    remedy = f"synchronize both (chrony, NTP): lags are wrong by {abs(skew_s):.0f} s"
    return judge(check, abs(skew_s) < _SMALL_S, found, remedy, "warning" if abs(skew_s) < _GREAT_S else "failure")


def list_host_checks() -> list[Check]:
    """The checks that no replication is needed for."""
    return [
        Check("versions", "packages", _check_versions),
        Check(
            "disks", "temporary folder", lambda: [check_disk("temporary folder", Path(tempfile.gettempdir()), "TMPDIR")]
        ),
    ]


def _check_versions() -> Iterator[DoctorLine]:
    yield DoctorLine("packages", "ok", ", ".join([*list_versions(), f"python {sys.version.split()[0]}"]))
    missing = sorted({extra for module, (extra, *_) in EXTRAS.items() if not _is_installed(module)})
    if missing:
        yield DoctorLine("extras", "not applicable", f"not installed: {', '.join(missing)}")
    try:
        require_one_pyspark()
    except ConfigError as error:
        yield explain_error("pyspark", error)


def _is_installed(module: str) -> bool:
    from importlib.util import find_spec

    return find_spec(module) is not None


def check_disk(check: str, folder: Path, setting: str) -> DoctorLine:
    """The free bytes of the file system of `folder`, which `setting` names; of its first parent that exists."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    found = f"{free / _GIB:,.1f} GiB free at {existing}"
    remedy = f"free space there, or move it: {setting}"
    return judge(check, free >= _LITTLE, found, remedy, "warning" if free >= _TOO_LITTLE else "failure")
