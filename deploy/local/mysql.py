"""A private MySQL: the same as the private MariaDB of `deploy.local.mariadb`, with another program."""

from __future__ import annotations

from pathlib import Path

from binlake.common.sql import Dialect
from deploy.local.mariadb import ROW_BINLOG, MariaDb, run_as_root
from deploy.local.process import ProcessError
from deploy.setup import mysql
from deploy.setup.common import SetupError, run


class MySql(MariaDb):
    """One MySQL server; folder, user and options as for MariaDb. Without `list_source_options` it writes no binlog."""

    name: Dialect = "mysql"

    @classmethod
    def list_source_options(cls, server_id: int = 1) -> tuple[str, ...]:
        """Options of a replication source: row binlogs with full images and metadata, and GTIDs."""
        return (*ROW_BINLOG, "--gtid-mode=ON", "--enforce-gtid-consistency=ON", f"--server-id={server_id}")

    def _install(self) -> list[str]:
        return mysql.install()

    def _write_system_tables(self) -> None:
        self.data_folder.mkdir(parents=True, exist_ok=True)
        try:
            run([*self._start_words(), "--initialize-insecure", f"--init-file={self._write_users()}"])
        except SetupError as error:
            raise ProcessError(str(error)) from None

    def _write_users(self) -> Path:
        # The default user is root@localhost, which matches no address if the server does not resolve names.
        file = self._scratch / "users.sql"
        file.write_text("CREATE USER 'root'@'%' IDENTIFIED BY '';\nGRANT ALL ON *.* TO 'root'@'%' WITH GRANT OPTION;\n")
        return file

    def _start_words(self) -> list[str]:
        folders = [f"--basedir={self._base}", f"--datadir={self.data_folder}"]
        return [*self._program, "--no-defaults", *folders, *run_as_root()]

    def _build_command(self) -> list[str]:
        binlog = any(option.startswith("--log-bin") for option in self.options)
        return [
            *self._start_words(),
            f"--socket={self.socket}",
            f"--tmpdir={self._scratch}",
            f"--port={self.port}",
            f"--bind-address={self.host}",
            "--mysqlx=OFF",
            "--secure-file-priv=NULL",
            *([] if binlog else ["--skip-log-bin"]),
            "--skip-name-resolve",
            "--performance-schema=OFF",
            "--character-set-server=utf8mb4",
            "--collation-server=utf8mb4_bin",
            "--innodb-buffer-pool-size=64M",
            "--innodb-redo-log-capacity=32M",
            "--max-allowed-packet=64M",
            *self.options,
        ]

    def _build_environment(self) -> dict[str, str]:
        return {}
