"""Puts a headless Chromium into `.local/chromium`, without root; one that the system has is taken instead. Tests only.

Debian's headless shell: the browser without its windows, so without what they depend on.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from deploy.setup import debian
from deploy.setup.common import LOCAL, command, find_program

ROOT = LOCAL / "chromium"
PACKAGES = ("chromium-headless-shell", "fonts-dejavu-core")
_NAMES = ("chromium", "chromium-headless-shell", "chromium-browser")


def program(root: Path = ROOT) -> Path | None:
    """The browser: the system's, else the unpacked one; None when there is none."""
    system = next((found for name in _NAMES if (found := find_program(name))), None)
    unpacked = root / "usr/lib/chromium/chromium-headless-shell"
    return system or (unpacked if unpacked.exists() else None)


def environment(root: Path = ROOT) -> dict[str, str]:
    """What the unpacked browser needs beside the process's own environment."""
    # PulseAudio's library keeps a part of itself in a folder of its own.
    folders = [debian.library_path(root), *(str(place) for place in root.glob("usr/lib/*/pulseaudio"))]
    path = ":".join(folder for folder in folders if folder)
    found = {**os.environ, "LD_LIBRARY_PATH": path} if path else dict(os.environ)
    if not Path("/etc/fonts/fonts.conf").exists() and (root / "etc/fonts").is_dir():
        # A machine without any fonts: those that were unpacked.
        found["FONTCONFIG_SYSROOT"] = str(root)
    return found


def install(root: Path = ROOT) -> Path:
    """Make sure that a browser is there and return it. Raises SetupError."""
    return debian.installed("chromium", "chromium", root, PACKAGES, lambda: program(root))


if __name__ == "__main__":
    sys.exit(command("chromium", lambda: str(install())))
