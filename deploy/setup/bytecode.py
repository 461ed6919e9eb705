"""Compiles once what the tests import, where `.venv` is new: each of their processes would do it for itself."""

from __future__ import annotations

import subprocess
import sys

from deploy.setup import packages
from deploy.setup.common import REPOSITORY, command, only_one

_STAMP = packages.VENV / ".binlake-compiled"


def compile_once() -> str:
    """Have one process import all tests, which keeps the bytecode; nothing where that was done with these packages."""
    with only_one("bytecode"):
        wanted = packages.digest()
        if _STAMP.exists() and _STAMP.read_text() == wanted:
            return "is kept"
        # A test that cannot be imported is for the run of the tests to report.
        collect = [str(packages.VENV / "bin" / "python"), "-m", "pytest", "--collect-only", "-qq"]
        subprocess.run(collect, cwd=REPOSITORY, capture_output=True, check=False)
        _STAMP.write_text(wanted)
        return "is kept from now on"


if __name__ == "__main__":
    sys.exit(command("bytecode", compile_once))
