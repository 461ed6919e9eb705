"""A log whose files the server encrypts: the server decrypts it for replicas."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from support.mariadb import MySql, execute, rows
from support.sourcelog import end_of, transactions_until_now

pytestmark = [pytest.mark.soak, pytest.mark.mariadb]

SECRET = "nobody reads this on the disk"


class EncryptingMySql(MySql):
    """A MySQL with component_keyring_file, which is configured by a file next to the program: it gets its own
    folder."""

    def _install(self) -> list[str]:
        words = super()._install()
        program = Path(words[-1])
        plugins = program.parents[1] / "lib/mysql/plugin"
        own = self.folder / "program"
        own.mkdir(parents=True)
        for file in (program, plugins / "component_keyring_file.so"):
            os.symlink(file, own / file.name)
        (own / "mysqld.my").write_text(json.dumps({"components": "file://component_keyring_file"}))
        key = {"path": str(self.folder / "keyring"), "read_only": False}
        (own / "component_keyring_file.cnf").write_text(json.dumps(key))
        self._installed = program.parents[1]
        return [*words[:-1], str(own / program.name)]

    def _start_words(self) -> list[str]:
        words = [word for word in super()._start_words() if not word.startswith("--basedir=")]
        return [*words, f"--basedir={self._installed}", f"--plugin-dir={self.folder / 'program'}"]


def test_an_encrypted_log_of_mysql_is_read(tmp_path: Path) -> None:
    # S4-01
    with EncryptingMySql(tmp_path, options=(*MySql.list_source_options(), "--binlog-encryption=ON")) as server:
        start = end_of(server)
        execute(
            server, "CREATE DATABASE d", "CREATE TABLE d.t (v TEXT)", f"INSERT INTO d.t VALUES ('{SECRET}')",
            "FLUSH BINARY LOGS", "INSERT INTO d.t VALUES ('in the next file')",
        )  # fmt: skip
        files = rows(server, "SHOW BINARY LOGS")
        seen = transactions_until_now(server, start)
        on_disk = b"".join((tmp_path / "data" / name).read_bytes() for name, *_ in files)
    assert {encrypted for _, _, encrypted in files} == {"Yes"}
    assert len(files) == 2
    assert SECRET.encode() not in on_disk
    assert [transaction.statement.text for transaction in seen[:1] if transaction.statement] == ["CREATE DATABASE d"]
    assert SECRET.encode() in bytes(seen[2].changes[0].rows)
    assert len(seen) == 4
