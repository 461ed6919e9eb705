"""Installs uv into `.local/tools` and the locked packages into `.venv`; a second run only looks.

Python 3.11 is taken from this machine; where it has none, uv is asked to fetch its own, and that is said.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from deploy.setup.common import LOCAL, REPOSITORY, SetupError, command, only_one, run, say

TOOLS = LOCAL / "tools"
VENV = REPOSITORY / ".venv"
_STAMP = VENV / ".binlake-lock"
_PYTHONS = (sys.executable, "python3.11", "/usr/bin/python3.11")
_WANTED = "3.11"


def install_uv(root: Path = TOOLS) -> Path:
    """uv in an environment of its own; its path. Raises SetupError."""
    program = root / "bin" / "uv"
    with only_one("tools"):
        if _answers(program):
            return program
        # A virtual environment cannot be renamed: it is made in place, and `uv --version` tells whether it is whole.
        say("uv", f"installing into {root}")
        shutil.rmtree(root, ignore_errors=True)
        try:
            run([sys.executable, "-m", "venv", str(root)])
        except SetupError as error:
            raise SetupError(_venv_hint(str(error))) from None
        run([str(root / "bin" / "python"), "-m", "pip", "install", "--quiet", "uv"])
        return program


def sync(venv: Path = VENV) -> str:
    """`.venv` with exactly what the lock says; does nothing when it is so already. Raises SetupError."""
    uv = install_uv()
    with only_one("venv"):
        wanted = digest()
        if _STAMP.exists() and _STAMP.read_text() == wanted and (venv / "bin" / "python").exists():
            return f"{venv}, as the lock says"
        say("packages", f"installing what uv.lock says into {venv}")
        _STAMP.unlink(missing_ok=True)
        environment = {**uv_environment(), "UV_PROJECT_ENVIRONMENT": str(venv)}
        environment.pop("VIRTUAL_ENV", None)
        run([str(uv), "sync", "--frozen", "--quiet", "--python", find_python()], REPOSITORY, environment)
        for remains in REPOSITORY.glob("*.egg-info"):
            # The build's by-product is a second distribution to whoever has this folder on the path (PYTHONPATH, -m):
            # Airflow would find the plugin twice and show that as an import error.
            shutil.rmtree(remains)
        _STAMP.write_text(wanted)
        return str(venv)


def uv_environment() -> dict[str, str]:
    """This process's, with this system's certificates for uv, as the other downloads take them.

    uv has a list of its own, which lacks that of a network whose proxy reads TLS.
    """
    return {"UV_SYSTEM_CERTS": "1", **os.environ}


def digest() -> str:
    """Of all that says what is installed."""
    files = (REPOSITORY / "uv.lock", REPOSITORY / "pyproject.toml")
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def find_python() -> str:
    """Python 3.11 of this machine, else the number that uv fetches one by."""
    for candidate in _PYTHONS:
        path = shutil.which(candidate)
        if path and _answers(Path(path), "-c", f"import sys; assert sys.version.startswith('{_WANTED}.')"):
            return path
    say("packages", f"no Python {_WANTED} on this machine: uv fetches one of its own")
    return _WANTED


def _answers(program: Path, *arguments: str) -> bool:
    try:
        done = subprocess.run([program, *(arguments or ("--version",))], capture_output=True, check=False)
    except OSError:
        return False
    return done.returncode == 0


def _venv_hint(said: str) -> str:
    if "ensurepip" in said or "No module named venv" in said:
        return f"Python's venv is missing: apt-get install python{sys.version_info[0]}.{sys.version_info[1]}-venv"
    return said


if __name__ == "__main__":
    sys.exit(command("packages", sync))
