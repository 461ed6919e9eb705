"""A private PostgreSQL for tests: Airflow's database as in deployments; on loopback, with a password.

The server refuses to run as root, but a container's user is often root. Then it runs as `nobody`, who owns its folder.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import psycopg2

from deploy.local.ports import HOST, free_port
from deploy.local.process import Child, ProcessError, build_account_arguments
from deploy.setup.debian import find_library_path
from deploy.setup.postgres import ROOT, install

_START_S = 240.0
_STOP_S = 30.0


class Postgres:
    """One server with one empty database, `airflow`, owned by `user`; its data is deleted when it stops."""

    user = database = "airflow"

    def __init__(self) -> None:
        self._programs = install().parent
        self._tree = ROOT if self._programs.is_relative_to(ROOT) else None
        self.folder = Path(tempfile.mkdtemp(prefix="binlake-postgres-"))
        self.port = free_port()
        self.password = secrets.token_hex(12)
        self._account = _choose_account()
        self._service: Child | None = None

    @property
    def url(self) -> str:
        """The database's URL in the form that Airflow uses."""
        return f"postgresql+psycopg2://{self.user}:{self.password}@{HOST}:{self.port}/{self.database}"

    @property
    def pid(self) -> int | None:
        """Process id while it runs."""
        return None if self._service is None else self._service.pid

    def start(self) -> Postgres:
        """Create the data folder, start, and return when the database exists. Raises ProcessError."""
        if self._account:
            os.chown(self.folder, *self._account)
            self._copy_unreadable_programs()
        self._initialise()
        self._service = Child(
            "postgres",
            self._build_command(),
            self.folder,
            self._build_environment(),
            cwd=self.folder,
            account=self._account,
        )
        self._service.start().wait_until(self._answers, _START_S)
        with contextlib.closing(self.connect("postgres")) as connection:
            connection.autocommit = True
            connection.cursor().execute(f"CREATE DATABASE {self.database}")
        return self

    def stop(self) -> None:
        """Stop it, even with open connections, and remove its data."""
        if self._service is not None:
            if self.pid is not None:
                # SIGINT is PostgreSQL's fast shutdown: SIGTERM would wait for open connections.
                os.kill(self.pid, signal.SIGINT)
            self._service.stop(_STOP_S)
        shutil.rmtree(self.folder, ignore_errors=True)

    def connect(self, database: str = database) -> Any:
        """A psycopg2 connection, which the caller closes."""
        return psycopg2.connect(
            host=HOST, port=self.port, user=self.user, password=self.password, dbname=database, connect_timeout=5
        )

    def __enter__(self) -> Postgres:
        try:
            return self.start()
        except BaseException:
            self.stop()
            raise

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    def _copy_unreadable_programs(self) -> None:
        """If the account cannot read the unpacked programs because root owns their folder, give it a copy."""
        try:
            self._run("postgres", "--version")
        except PermissionError:
            if self._tree is None:
                raise
            copy = self.folder / "programs"
            shutil.copytree(self._tree, copy, symlinks=True)
            copy.chmod(0o755)
            self._programs, self._tree = copy / self._programs.relative_to(self._tree), copy

    def _initialise(self) -> None:
        password_file = self.folder / "password"
        password_file.write_text(self.password, encoding="utf-8")
        if self._account:
            os.chown(password_file, *self._account)
        access = [f"--username={self.user}", "--auth=scram-sha-256", f"--pwfile={password_file}"]
        self._run("initdb", f"--pgdata={self._data}", "--encoding=UTF8", "--no-locale", "--no-sync", *access)
        password_file.unlink()

    def _run(self, program: str, *words: str) -> None:
        done = subprocess.run(
            [self._programs / program, *words],
            cwd=self.folder,
            env={**os.environ, **self._build_environment()},
            capture_output=True,
            text=True,
            check=False,
            **build_account_arguments(self._account),
        )
        if done.returncode:
            raise ProcessError(f"{program} failed: {done.stderr.strip()[-1500:]}")

    def _build_command(self) -> list[str]:
        settings = {
            "listen_addresses": HOST,
            "port": str(self.port),
            "unix_socket_directories": "",
            # Tests write little data and discard it.
            "fsync": "off",
        }
        return [
            str(self._programs / "postgres"),
            f"-D{self._data}",
            *(f"--{name}={value}" for name, value in settings.items()),
        ]

    def _build_environment(self) -> dict[str, str]:
        # The programs find their files relative to themselves; only the loader needs a path.
        found = find_library_path(self._tree) if self._tree else ""
        return {"LD_LIBRARY_PATH": found} if found else {}

    def _answers(self) -> bool:
        try:
            self.connect("postgres").close()
        except psycopg2.OperationalError:
            return False
        return True


def _choose_account() -> tuple[int, int] | None:
    if os.geteuid():
        return None
    nobody = pwd.getpwnam("nobody")
    return nobody.pw_uid, nobody.pw_gid
