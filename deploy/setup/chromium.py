"""Installs a headless Chromium into `.local/chromium`, without root, unless the system has one. Tests only.

It is Debian's headless shell: the browser without a graphical interface and its dependencies.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from deploy.setup import debian
from deploy.setup.common import LOCAL, find_program, run_installer

ROOT = LOCAL / "chromium"
PACKAGES = ("chromium-headless-shell", "fonts-dejavu-core")
_NAMES = ("chromium", "chromium-headless-shell", "chromium-browser")


def find_browser(root: Path = ROOT) -> Path | None:
    """The browser: the system's, else the unpacked one; None if there is none."""
    system = next((found for name in _NAMES if (found := find_program(name))), None)
    unpacked = root / "usr/lib/chromium/chromium-headless-shell"
    return system or (unpacked if unpacked.exists() else None)


def build_environment(root: Path = ROOT) -> dict[str, str]:
    """The process's environment with the variables that the unpacked browser needs."""
    # PulseAudio's library has a part in a separate folder.
    folders = [debian.find_library_path(root), *(str(place) for place in root.glob("usr/lib/*/pulseaudio"))]
    path = ":".join(folder for folder in folders if folder)
    variables = {**os.environ, "LD_LIBRARY_PATH": path} if path else dict(os.environ)
    if not Path("/etc/fonts/fonts.conf").exists() and (root / "etc/fonts").is_dir():
        # The machine has no fonts: use the unpacked ones.
        variables["FONTCONFIG_SYSROOT"] = str(root)
    return variables


def install(root: Path = ROOT) -> Path:
    """Make sure that a browser is installed, and return it. Raises SetupError."""
    return debian.ensure_installed("chromium", "chromium", root, PACKAGES, lambda: find_browser(root))


if __name__ == "__main__":
    sys.exit(run_installer("chromium", lambda: str(install())))
