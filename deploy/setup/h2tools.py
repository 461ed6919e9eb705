"""Installs HTTP/2 tools below `.local`, without root: nghttp2's h2load and nghttp, and h2spec. Tests only."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from deploy.setup import debian
from deploy.setup.common import (
    LOCAL,
    SetupError,
    find_program,
    hold_install_lock,
    run,
    run_installer,
    say,
    stage_folder,
)

NGHTTP2 = LOCAL / "nghttp2"
H2SPEC = LOCAL / "h2spec"
PACKAGES = ("nghttp2-client",)
_MODULE = "github.com/summerwind/h2spec/cmd/h2spec@v2.2.1+incompatible"
_GO_FOLDERS = ("/usr/local/go/bin", "/usr/lib/go/bin")


def find_tool(name: str) -> Path | None:
    """`h2load`, `nghttp` or `h2spec`: the system's, else the unpacked one; None if there is none."""
    unpacked = H2SPEC / "bin/h2spec" if name == "h2spec" else NGHTTP2 / "usr/bin" / name
    return find_program(name) or (unpacked if unpacked.exists() else None)


def build_environment() -> dict[str, str]:
    """The process's environment with the variables that the unpacked programs need."""
    path = debian.find_library_path(NGHTTP2)
    return {**os.environ, "LD_LIBRARY_PATH": path} if path else dict(os.environ)


def install_nghttp2() -> Path:
    """Make sure that h2load and nghttp are installed. Raises SetupError."""
    return debian.ensure_installed("nghttp2", "nghttp2's clients", NGHTTP2, PACKAGES, lambda: find_tool("h2load"))


def install_h2spec() -> Path:
    """Make sure that h2spec is installed, which takes a minute of CPU. Raises SetupError without Go."""
    with hold_install_lock("h2spec"):
        existing = find_tool("h2spec")
        if existing is not None:
            return existing
        go = _find_go()
        if go is None:
            raise SetupError("h2spec is built from its Go module: install Go (Debian: apt-get install golang-go)")
        say("h2spec", f"building it into {H2SPEC}")
        with stage_folder(H2SPEC) as tree:
            cache = {"GOBIN": str(tree / "bin"), "GOFLAGS": "-modcacherw"}
            run([str(go), "install", _MODULE], env={**os.environ, **cache})
        return H2SPEC / "bin/h2spec"


def _find_go() -> Path | None:
    places = [Path(folder) / "go" for folder in _GO_FOLDERS]
    return find_program("go") or next((place for place in places if place.exists()), None)


if __name__ == "__main__":
    sys.exit(
        run_installer("nghttp2", lambda: str(install_nghttp2()))
        or run_installer("h2spec", lambda: str(install_h2spec()))
    )
