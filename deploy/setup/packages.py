"""Installs uv into `.local/tools` and the locked packages into `.venv`; a second run only checks.

It uses this machine's Python 3.11. If there is none, uv downloads one, and the installer says so.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from deploy.setup.common import LOCAL, REPOSITORY, STAMP, SetupError, hold_install_lock, run, run_installer, say

TOOLS = LOCAL / "tools"
VENV = REPOSITORY / ".venv"
_STAMP = VENV / STAMP
_PYTHONS = (sys.executable, "python3.11", "/usr/bin/python3.11")
_WANTED = "3.11"


def install_uv(root: Path = TOOLS) -> Path:
    """Install uv in its own environment; returns its path. Raises SetupError."""
    program = root / "bin" / "uv"
    with hold_install_lock("tools"):
        if _answers(program):
            return program
        # A virtual environment cannot be renamed, so it is made in place; `uv --version` shows whether it is complete.
        say("uv", f"installing into {root}")
        shutil.rmtree(root, ignore_errors=True)
        try:
            run([sys.executable, "-m", "venv", str(root)])
        except SetupError as error:
            raise SetupError(_explain_venv_error(str(error))) from None
        run([str(root / "bin" / "python"), "-m", "pip", "install", "--quiet", "uv"])
        return program


def sync(venv: Path = VENV) -> str:
    """Make `.venv` match the lock exactly; does nothing if it already does. Raises SetupError."""
    uv = install_uv()
    with hold_install_lock("venv"):
        wanted = compute_digest()
        if _STAMP.exists() and _STAMP.read_text() == wanted and (venv / "bin" / "python").exists():
            return f"{venv}, as the lock says"
        say("packages", f"installing what uv.lock says into {venv}")
        _STAMP.unlink(missing_ok=True)
        environment = {**build_uv_environment(), "UV_PROJECT_ENVIRONMENT": str(venv)}
        environment.pop("VIRTUAL_ENV", None)
        run([str(uv), "sync", "--frozen", "--quiet", "--python", find_python()], REPOSITORY, environment)
        for remains in REPOSITORY.glob("*.egg-info"):
            # Left by a setuptools build, before 0.2. If this folder is on the path (PYTHONPATH, -m), it counts as a
            # second distribution: Airflow would find the plugin twice and show an import error.
            shutil.rmtree(remains)
        _STAMP.write_text(wanted)
        return str(venv)


def build_uv_environment() -> dict[str, str]:
    """This process's environment, in which uv uses the system's certificates, as the other downloads do.

    uv has its own list of certificates, which lacks the certificate of a proxy that intercepts TLS.
    """
    return {"UV_SYSTEM_CERTS": "1", **os.environ}


def compute_digest() -> str:
    """A digest of the files that determine what is installed."""
    files = (REPOSITORY / "uv.lock", REPOSITORY / "pyproject.toml")
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def find_python() -> str:
    """This machine's Python 3.11, else the version number for uv to download."""
    for candidate in _PYTHONS:
        path = shutil.which(candidate)
        if path and _answers(Path(path), "-c", f"import sys; assert sys.version.startswith('{_WANTED}.')"):
            return path
    say("packages", f"no Python {_WANTED} on this machine: uv downloads one")
    return _WANTED


def _answers(program: Path, *arguments: str) -> bool:
    try:
        done = subprocess.run([program, *(arguments or ("--version",))], capture_output=True, check=False)
    except OSError:
        return False
    return done.returncode == 0


def _explain_venv_error(output: str) -> str:
    if "ensurepip" in output or "No module named venv" in output:
        return f"Python's venv is missing: apt-get install python{sys.version_info[0]}.{sys.version_info[1]}-venv"
    return output


if __name__ == "__main__":
    sys.exit(run_installer("packages", sync))
