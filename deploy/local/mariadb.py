"""A private MariaDB with its own data folder and socket on a free loopback port; needs no root, shares nothing."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any, Self

import pymysql
from pymysql.connections import Connection
from pymysql.cursors import Cursor

from binlake.common.sql import Dialect
from deploy.local.ports import HOST, free_port
from deploy.local.process import Child, ProcessError
from deploy.setup.common import SetupError, run
from deploy.setup.mariadb import find_library_path, install, install_script

START_SECONDS = 240.0  # a server that ends early is noticed at once
_STOP_S = 30.0
ROW_BINLOG = ("--log-bin=binlog", "--binlog-format=ROW", "--binlog-row-image=FULL", "--binlog-row-metadata=FULL")
_SYSTEM = ("information_schema", "mysql", "performance_schema", "sys")


class MariaDb:
    """One server. `folder`: holds all its files (None: a temporary folder, which `stop` removes).

    `name` is also its SQL dialect, as in `target.db-type`. The `user` is root without a password, reachable at (`host`,
    `port`) and `socket`. `options` are added to the server's command line, such as `--general-log=1`; those of
    `list_source_options` make it a source of binlogs.
    """

    name: Dialect = "mariadb"
    user = "root"
    password = ""
    host = HOST

    def __init__(self, folder: Path | None = None, *, port: int = 0, options: tuple[str, ...] = ()) -> None:
        self._temporary = folder is None
        self.folder = folder or Path(tempfile.mkdtemp(prefix=f"binlake-{self.name}-"))
        self.port = port or free_port()
        self.options = options
        self.socket = self._choose_socket()
        self._program = self._install()
        self._service = Child(self.name, self._build_command(), self.folder, env=self._build_environment())
        self.log = self._service.log

    @classmethod
    def list_source_options(cls, server_id: int = 1) -> tuple[str, ...]:
        """Options of a replication source: row binlogs with full images and metadata, and GTIDs."""
        return (*ROW_BINLOG, "--log-slave-updates", f"--server-id={server_id}")

    @property
    def pid(self) -> int | None:
        """Process id while it runs."""
        return self._service.pid

    def start(self) -> Self:
        """Create the data folder if necessary, start, and return when it answers. Raises ProcessError."""
        self.initialise()
        self._service.start().wait_until(self._answers, START_SECONDS)
        return self

    def initialise(self) -> None:
        """Create `data_folder` with the system tables, unless it has them already. Raises ProcessError."""
        self._scratch.mkdir(parents=True, exist_ok=True)
        if not (self.data_folder / "mysql").exists():
            self._write_system_tables()

    def stop(self) -> None:
        """Shut down cleanly; a temporary folder is removed."""
        self._service.stop(_STOP_S)
        self.socket.unlink(missing_ok=True)
        if self._temporary:
            shutil.rmtree(self.folder, ignore_errors=True)

    def kill9(self) -> None:
        """Kill it, as if the machine failed: no shutdown, no flush."""
        self._service.kill9()

    def restart(self) -> Self:
        """Stop (if it runs) and start on the same data and port."""
        self._service.stop(_STOP_S)
        return self.start()

    def connect(self, **arguments: Any) -> Connection[Any]:
        """A connection as root, autocommit on; `arguments` go to pymysql."""
        # Otherwise each connection reads the system's certificates (20 ms of CPU), although this server has no TLS.
        plain = {"ssl_disabled": True}
        own = {"host": self.host, "port": self.port, "user": self.user, "password": self.password, **plain}
        return pymysql.connect(**{**own, "charset": "utf8mb4", "autocommit": True, **arguments})

    def end_sessions(self) -> None:
        """End every session except this one: a session left open by a failed run would block the next run's DDL."""
        with self.connect() as connection, connection.cursor() as cursor:
            cursor.execute(
                "SELECT id FROM information_schema.processlist WHERE id <> CONNECTION_ID() AND user = 'root'"
            )
            for (session,) in cursor.fetchall():
                with contextlib.suppress(pymysql.err.OperationalError):  # the session has ended by itself
                    cursor.execute("KILL %s", (session,))

    def wipe(self) -> None:
        """Drop every database except the system databases, even if sessions use it."""
        self.end_sessions()
        with self.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SET foreign_key_checks = 0")
            for name in _list_databases(cursor):
                cursor.execute(f"DROP DATABASE `{name.replace('`', '``')}`")

    def list_databases(self) -> list[str]:
        """The names of all databases except the system databases."""
        with self.connect() as connection, connection.cursor() as cursor:
            return _list_databases(cursor)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def data_folder(self) -> Path:
        """Where the server keeps its tables and logs."""
        return self.folder / "data"

    @property
    def _scratch(self) -> Path:
        return self.folder / "tmp"

    def _choose_socket(self) -> Path:
        inside = self.folder / f"{self.name}.sock"
        # A socket's path may have at most 107 bytes.
        return inside if len(os.fsencode(inside)) <= 100 else Path(tempfile.gettempdir()) / f"binlake-{self.port}.sock"

    @property
    def version(self) -> str:
        """Program and version, as the program prints them. Raises SetupError."""
        return run(
            [*self._program, "--no-defaults", "--version"], env={**os.environ, **self._build_environment()}
        ).strip()

    def _install(self) -> list[str]:
        """Install the server if necessary, and return the command that starts it."""
        return [str(install())]

    def _write_system_tables(self) -> None:
        self.data_folder.mkdir(parents=True, exist_ok=True)
        options = ["--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve"]
        places = [f"--basedir={self._base}", f"--datadir={self.data_folder}", f"--tmpdir={self._scratch}"]
        command = [str(install_script()), "--no-defaults", *places, *options, *run_as_root()]
        try:
            run(command, env={**os.environ, **self._build_environment()})
        except SetupError as error:
            raise ProcessError(str(error)) from None

    def _build_command(self) -> list[str]:
        return [
            *self._program,
            "--no-defaults",
            f"--basedir={self._base}",
            f"--datadir={self.data_folder}",
            f"--socket={self.socket}",
            # A starting server clears this folder of temporary tables, so it must not be shared with another server.
            f"--tmpdir={self._scratch}",
            f"--port={self.port}",
            f"--bind-address={self.host}",
            "--skip-name-resolve",
            "--character-set-server=utf8mb4",
            "--collation-server=utf8mb4_bin",
            "--innodb-buffer-pool-size=64M",
            "--innodb-log-file-size=32M",
            "--max-allowed-packet=64M",
            *run_as_root(),
            *self.options,
        ]

    @property
    def _base(self) -> Path:
        return Path(self._program[-1]).resolve().parents[1]

    def _build_environment(self) -> dict[str, str]:
        found = find_library_path()
        return {"LD_LIBRARY_PATH": found} if found else {}

    def _answers(self) -> bool:
        try:
            self.connect(connect_timeout=2).close()
        except pymysql.err.OperationalError:
            return False
        return True


def _list_databases(cursor: Cursor) -> list[str]:
    cursor.execute("SELECT schema_name FROM information_schema.schemata")
    return [name for (name,) in cursor.fetchall() if name.lower() not in _SYSTEM]


def run_as_root() -> list[str]:
    """The option that lets the server run as root, if this process runs as root."""
    # The server refuses to run as root without it, and containers often have only root.
    return ["--user=root"] if os.geteuid() == 0 else []
