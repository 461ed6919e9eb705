"""The tests' MySQL: a private server as the tests' MariaDB is one."""

from __future__ import annotations

import os
from pathlib import Path

from deploy.local.mariadb import MariaDb
from deploy.local.process import ProcessError
from deploy.setup import mysql
from deploy.setup.common import SetupError, run


class MySql(MariaDb):
    """One MySQL server; user, folder, options as of MariaDb."""

    def __init__(self, folder: Path | None = None, *, port: int = 0, options: tuple[str, ...] = ()) -> None:
        self._words = mysql.install()
        super().__init__(folder, port=port, options=options)

    def _initialise(self) -> None:
        self._data.mkdir(parents=True, exist_ok=True)
        try:
            run([*self._start(), "--initialize-insecure", f"--init-file={self._users()}"])
        except SetupError as error:
            raise ProcessError(str(error)) from None

    def _users(self) -> Path:
        # Its own root is one of `localhost`, which no address is to a server that resolves no names.
        file = self._scratch / "users.sql"
        file.write_text("CREATE USER 'root'@'%' IDENTIFIED BY '';\nGRANT ALL ON *.* TO 'root'@'%' WITH GRANT OPTION;\n")
        return file

    def _start(self) -> list[str]:
        base = Path(self._words[-1]).resolve().parents[1]
        user = ["--user=root"] if os.geteuid() == 0 else []
        return [*self._words, "--no-defaults", f"--basedir={base}", f"--datadir={self._data}", *user]

    def _command(self) -> list[str]:
        return [
            *self._start(),
            f"--socket={self.socket}",
            f"--tmpdir={self._scratch}",
            f"--port={self.port}",
            f"--bind-address={self.host}",
            "--mysqlx=OFF",
            "--secure-file-priv=NULL",
            "--skip-log-bin",
            "--skip-name-resolve",
            "--performance-schema=OFF",
            "--character-set-server=utf8mb4",
            "--collation-server=utf8mb4_bin",
            "--innodb-buffer-pool-size=64M",
            "--innodb-redo-log-capacity=32M",
            "--max-allowed-packet=64M",
            *self.options,
        ]

    def _environment(self) -> dict[str, str]:
        return {}
