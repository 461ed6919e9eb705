"""Checks that Java 17 or newer is installed: Spark needs it, and only the system's package manager can install it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from deploy.setup.common import SetupError, find_program, run_installer

OLDEST = 17
_HINT = "install it (Debian: apt-get install openjdk-17-jre-headless) or set JAVA_HOME"
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')


def check() -> str:
    """Path and version of the Java that Spark will use. Raises SetupError."""
    java = find_java()
    if java is None:
        raise SetupError(f"Java is not installed: {_HINT}")
    shown = read_version(java)
    version = _VERSION.search(shown)
    if version is None:
        raise SetupError(f"{java} does not report its version: {shown.strip()[:200]}")
    if int(version[1]) < OLDEST:
        raise SetupError(f"{java} is Java {version[1]}, Spark needs {OLDEST} or newer: {_HINT}")
    return f"{java} (version {version[1]})"


def read_version(java: Path) -> str:
    """The output of `java -version`, which goes to stderr."""
    return subprocess.run([str(java), "-version"], capture_output=True, text=True, check=False).stderr


def find_java() -> Path | None:
    """The Java that Spark will use; None if there is none. Raises SetupError if JAVA_HOME is wrong."""
    # Spark uses JAVA_HOME first.
    home = os.environ.get("JAVA_HOME")
    if home:
        own = Path(home) / "bin" / "java"
        if not own.exists():
            raise SetupError(f"JAVA_HOME is {home}, which has no bin/java: {_HINT}")
        return own
    return find_program("java")


if __name__ == "__main__":
    sys.exit(run_installer("java", check))
