"""Passwords of a replication file are read from the environment, and only if they are used."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.replication_files import write_replication

from binlake.config.load import load_replication
from binlake.errors import ConfigError

SQL = 'sql = {host = "tidb", user = "reader", password = "env:BINLAKE_TEST_SQL"}'


def test_password_of_source_sql_is_read_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # S0-60
    file = write_replication(tmp_path, "demo", source=SQL, target=None)
    with pytest.raises(ConfigError, match=r"source\.sql\.password names.*variable=BINLAKE_TEST_SQL\] Hint: export"):
        load_replication(file)
    monkeypatch.setenv("BINLAKE_TEST_SQL", "hidden")
    sql = load_replication(file).source.sql
    assert sql is not None
    assert (sql.host, sql.port, sql.password) == ("tidb", 4000, "hidden")
    assert "hidden" not in repr(sql)
    untouched = load_replication(file, secrets=False).source.sql
    assert untouched is not None
    assert untouched.password == "env:BINLAKE_TEST_SQL"
