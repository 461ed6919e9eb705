"""Checks of this machine: versions of the packages, and its temporary folder."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from binlake.base.installation import EXTRAS, list_versions, require_one_pyspark
from binlake.errors import ConfigError
from binlake.health.doctor.model import Check, DoctorLine, explain_error, judge

_LITTLE, _TOO_LITTLE = 10 << 30, 1 << 30
_GIB = 1 << 30


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
