"""Installs Apicurio Registry into `.local/apicurio`, for tests: a schema registry with Confluent's API.

3.0.9 is the newest version that runs on Java 17 and has its archive on Maven Central.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from deploy.setup.common import LOCAL, hold_install_lock, run_installer, stage_folder
from deploy.setup.jars import Jar, install_jars

ROOT = LOCAL / "apicurio"
_ARCHIVE = Jar(
    "io.apicurio",
    "apicurio-registry-app",
    "3.0.9",
    "2b28181501a20cbf6efcd77f9b7153908fc01f3d3a7c32024c0bd9e1b04c8a43",
    kind="tar.gz",
    classifier="all",
)
_RUNNER = "apicurio-registry-app-3.0.9-runner.jar"


def install(root: Path = ROOT) -> Path:
    """Make sure that the registry is installed; returns the jar to run. Raises SetupError."""
    archive = install_jars("apicurio-archive", "Apicurio Registry", [_ARCHIVE], root / "archive") / _ARCHIVE.file
    with hold_install_lock("apicurio"):
        if not (root / "app" / _RUNNER).exists():
            with stage_folder(root / "app") as tree:
                # Without `filter`, which Debian's Python 3.11.2 lacks; the checksum guarantees the archive's content.
                shutil.unpack_archive(archive, tree)
        return root / "app" / _RUNNER


if __name__ == "__main__":
    sys.exit(run_installer("apicurio", lambda: str(install())))
