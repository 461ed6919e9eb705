"""Installs moto's S3 server into its own environment, `.local/moto`, for tests of a feed's files in an object store.

It is separate from `.venv` because it needs older versions of packages that Binlake uses.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
from pathlib import Path

from deploy.setup.common import LOCAL, hold_install_lock, run, run_installer, say
from deploy.setup.packages import build_uv_environment, find_python, install_uv

ROOT = LOCAL / "moto"
LOCK = Path(__file__).with_suffix(".lock")


def install(root: Path = ROOT) -> Path:
    """Make sure that the server is installed as the lock says; returns the Python that runs it. Raises SetupError."""
    uv, python = install_uv(), root / "bin" / "python"
    wanted, stamp = hashlib.sha256(LOCK.read_bytes()).hexdigest(), root / ".binlake-lock"
    with hold_install_lock("moto"):
        if not stamp.exists() or stamp.read_text() != wanted:
            say("moto", f"installing into {root}")
            shutil.rmtree(root, ignore_errors=True)
            run([str(uv), "venv", "--quiet", "--python", find_python(), str(root)], env=build_uv_environment())
            words = ["pip", "install", "--quiet", "--python", str(python), "--require-hashes", "-r", str(LOCK)]
            run([str(uv), *words], env=build_uv_environment())
            stamp.write_text(wanted)
        return python


if __name__ == "__main__":
    sys.exit(run_installer("moto", lambda: str(install())))
