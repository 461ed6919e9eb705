"""A private MariaDB: own data folder, own socket, a free loopback port; no root, nothing shared, gone when stopped."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import pymysql
from pymysql.connections import Connection

from deploy.setup.mariadb import install, install_script, library_path

START_SECONDS = 60.0


class MariaDbError(Exception):
    """The server does not start or answer; holds the end of its log."""


class MariaDb:
    """One server. `folder`: where it keeps everything (None: a temporary folder, removed by `stop`).

    `user` root without a password, reachable at (`host`, `port`) and `socket`. `options` are added to the server's
    command line, such as `--general-log=1`.
    """

    user = "root"
    password = ""
    host = "127.0.0.1"

    def __init__(self, folder: Path | None = None, *, port: int = 0, options: tuple[str, ...] = ()) -> None:
        self._temporary = folder is None
        self.folder = folder or Path(tempfile.mkdtemp(prefix="binlake-mariadb-"))
        self.port = port or free_port()
        self.options = options
        self.log = self.folder / "mariadb.log"
        # A socket's path may hold about 100 bytes, so it sits in a short place of its own.
        self._socket_folder = Path(tempfile.mkdtemp(prefix="bl-my-", dir="/tmp"))
        self.socket = self._socket_folder / "s"
        self._process: subprocess.Popen[bytes] | None = None
        self._server = install()

    @property
    def pid(self) -> int | None:
        """Process id while it runs."""
        return self._process.pid if self._process and self._process.poll() is None else None

    def start(self) -> MariaDb:
        """Create the data folder if need be, start, and return when it answers. Raises MariaDbError."""
        data = self.folder / "data"
        if not (data / "mysql").exists():
            self._initialise(data)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command(data), stdout=log, stderr=log, env=self._environment(), start_new_session=True
            )
        self._wait_until_it_answers()
        return self

    def stop(self) -> None:
        """Shut down cleanly; a temporary folder is removed."""
        self._end(signal.SIGTERM)
        shutil.rmtree(self._socket_folder, ignore_errors=True)
        if self._temporary:
            shutil.rmtree(self.folder, ignore_errors=True)

    def kill9(self) -> None:
        """The machine is gone: no shutdown, no flush."""
        self._end(signal.SIGKILL)

    def restart(self) -> MariaDb:
        """Stop (if it runs) and start on the same data and port."""
        self._end(signal.SIGTERM)
        return self.start()

    def connect(self, **arguments: Any) -> Connection[Any]:
        """A connection as root, autocommit on; `arguments` go to pymysql."""
        return pymysql.connect(
            **{
                "host": self.host,
                "port": self.port,
                "user": self.user,
                "password": self.password,
                "charset": "utf8mb4",
                "autocommit": True,
                **arguments,
            }
        )

    def __enter__(self) -> MariaDb:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _initialise(self, data: Path) -> None:
        data.mkdir(parents=True, exist_ok=True)
        script = str(install_script())
        done = subprocess.run(
            [
                script,
                "--no-defaults",
                f"--basedir={self._base()}",
                f"--datadir={data}",
                "--auth-root-authentication-method=normal",
                "--skip-test-db",
                "--skip-name-resolve",
                *_as_root(),
            ],
            env=self._environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise MariaDbError(f"mariadb-install-db failed: {done.stdout[-800:]} {done.stderr[-800:]}")

    def _command(self, data: Path) -> list[str]:
        return [
            str(self._server),
            "--no-defaults",
            f"--basedir={self._base()}",
            f"--datadir={data}",
            f"--socket={self.socket}",
            f"--port={self.port}",
            f"--bind-address={self.host}",
            f"--pid-file={self.folder / 'mariadb.pid'}",
            "--skip-name-resolve",
            "--character-set-server=utf8mb4",
            "--collation-server=utf8mb4_bin",
            "--innodb-buffer-pool-size=64M",
            "--innodb-log-file-size=32M",
            "--max-allowed-packet=64M",
            *_as_root(),
            *self.options,
        ]

    def _base(self) -> Path:
        return self._server.resolve().parents[1]

    def _environment(self) -> dict[str, str]:
        found = library_path()
        return {**os.environ, **({"LD_LIBRARY_PATH": found} if found else {})}

    def _wait_until_it_answers(self) -> None:
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until:
            if self.pid is None:
                break
            try:
                self.connect(connect_timeout=2).close()
                return
            except pymysql.err.OperationalError:
                time.sleep(0.05)
        raise MariaDbError(f"mariadbd does not answer on port {self.port}: {self._log_end()}")

    def _log_end(self) -> str:
        return self.log.read_text(errors="replace")[-1500:] if self.log.exists() else "(no log)"

    def _end(self, how: signal.Signals) -> None:
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.send_signal(how)
            try:
                self._process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._process = None


def free_port() -> int:
    """A TCP port of the loopback address that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _as_root() -> list[str]:
    # The server refuses to run as root unless told so; containers are often nothing but root.
    return ["--user=root"] if os.geteuid() == 0 else []
