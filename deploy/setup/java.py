"""Checks that Java 17 or newer is there: Spark needs it, and only the system's package manager can bring it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from deploy.setup.common import SetupError, command, find_program

OLDEST = 17
_HINT = "install it (Debian: apt-get install openjdk-17-jre-headless) or set JAVA_HOME"
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')


def check() -> str:
    """Path and version of the Java that Spark will take. Raises SetupError."""
    program = _program()
    if program is None:
        raise SetupError(f"Java is not installed: {_HINT}")
    # It writes its version to stderr.
    said = subprocess.run([str(program), "-version"], capture_output=True, text=True, check=False).stderr
    found = _VERSION.search(said)
    if found is None:
        raise SetupError(f"{program} does not report its version: {said.strip()[:200]}")
    if int(found[1]) < OLDEST:
        raise SetupError(f"{program} is Java {found[1]}, Spark needs {OLDEST} or newer: {_HINT}")
    return f"{program} (version {found[1]})"


def _program() -> Path | None:
    # Spark looks at JAVA_HOME first.
    home = os.environ.get("JAVA_HOME")
    if home:
        own = Path(home) / "bin" / "java"
        if not own.exists():
            raise SetupError(f"JAVA_HOME is {home}, which has no bin/java: {_HINT}")
        return own
    return find_program("java")


if __name__ == "__main__":
    sys.exit(command("java", check))
