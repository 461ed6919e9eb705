"""The private PostgreSQL belongs to one user, never runs as root, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import psutil
import psycopg2
import pytest

from deploy.local import postgres
from deploy.local.ports import HOST
from deploy.local.postgres import Postgres
from deploy.local.process import ProcessError, is_alive, list_members

pytestmark = [pytest.mark.process, pytest.mark.soak]


def test_server_listens_on_loopback_with_a_password_and_is_gone_after_stop() -> None:
    with Postgres() as server:
        left_open = server.connect()
        left_open.cursor().execute("CREATE TABLE t (a INT)")
        with pytest.raises(psycopg2.OperationalError, match="password authentication failed"):
            psycopg2.connect(host=HOST, port=server.port, user=server.user, dbname="airflow", password="other")
        assert server.pid is not None
        family = list_members(server.pid)
        accounts, listens_at = set[int](), set[tuple[str, int]]()
        for process in family:
            # A clean-up worker may end by itself at any time.
            with contextlib.suppress(psutil.NoSuchProcess):
                accounts.add(process.uids().effective)
                connections = process.net_connections("all")
                listens_at.update(one.laddr for one in connections if one.status == psutil.CONN_LISTEN)
        assert listens_at == {(HOST, server.port)}
        assert accounts
        assert 0 not in accounts
    assert not server.folder.exists()
    assert not [one for one in family if is_alive(one)]
    with pytest.raises(psycopg2.OperationalError, match=r"closed the connection|terminating connection"):
        left_open.cursor().execute("SELECT 1")


@pytest.mark.skipif(os.geteuid() != 0, reason="a user other than root runs the server under its own account")
def test_programs_in_a_root_only_folder_are_copied_for_the_account(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o700)
    programs = tmp_path / "usr/lib/postgresql/15/bin"
    programs.mkdir(parents=True)
    for name, script in (("postgres", "exit 0"), ("initdb", 'echo "$(id -un) at $0" >&2; exit 1')):
        (programs / name).write_text(f"#!/bin/sh\n{script}\n")
        (programs / name).chmod(0o755)
    monkeypatch.setattr(postgres, "ROOT", tmp_path)
    monkeypatch.setattr(postgres, "install", lambda: programs / "postgres")
    server = Postgres()
    with pytest.raises(ProcessError) as told, server:
        pass
    assert str(told.value) == f"initdb failed: nobody at {server.folder}/programs/usr/lib/postgresql/15/bin/initdb"
    assert not server.folder.exists()
