"""A small deployment as a release left it, for the test that opens it with the current code.

`python tests/support/releases.py 0.2.0` records one below tests/releases with the code of this checkout: the folders of
placement driver, pump, feeder and lake, and the tables of the source and of the target as statements. It is stopped in
the middle of its work: one window is landed and not applied, and the pump holds rows that no window has landed.
"""

from __future__ import annotations

import json
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parents[1])]

from support.feeding import FedCluster, mixed_transactions
from support.feedload import run_windows
from support.mariadb import MariaDb, execute, mariadb_in_memory, rows

from binlake.errors import BinlakeError

RELEASES = Path(__file__).resolve().parents[1] / "releases"
_STATE, _SERVERS, _FACTS = "state.tar.xz", "servers.json", "facts.json"
_FOLDERS = ("pd", "pump1", "feeder", "lake", "feed")


def record_release(version: str) -> Path:
    """Record a deployment of the current code as `version`; return its folder."""
    folder = RELEASES / version
    folder.mkdir(parents=True)
    source_options = MariaDb.list_source_options()
    with tempfile.TemporaryDirectory() as name, mariadb_in_memory(source_options) as source, mariadb_in_memory() as to:
        facts = _live(Path(name), source, to)
        with tarfile.open(folder / _STATE, "w:xz") as archive:
            for part in _FOLDERS:
                archive.add(Path(name) / part, part)
        servers = {"source": dump_tables(source), "target": dump_tables(to)}
        (folder / _SERVERS).write_text(json.dumps(servers, indent=0, ensure_ascii=False), encoding="utf-8")
        (folder / _FACTS).write_text(json.dumps(facts, indent=1), encoding="utf-8")
    return folder


def unpack_release(version: str, folder: Path) -> dict[str, Any]:
    """Unpack the folders of `version` into `folder`; return what was known when it was recorded."""
    with tarfile.open(RELEASES / version / _STATE) as archive:
        archive.extractall(folder)
    return dict(json.loads((RELEASES / version / _FACTS).read_text(encoding="utf-8")))


def load_release(version: str, server: MariaDb, which: str) -> None:
    """Fill `server` with the tables of the `source` or the `target` of `version`."""
    servers = json.loads((RELEASES / version / _SERVERS).read_text(encoding="utf-8"))
    execute(server, "SET GLOBAL foreign_key_checks = 0")
    execute(server, *servers[which])


def build_sections(folder: Path) -> dict[str, Any]:
    """What the recorded replication has beside source, lake and target."""
    uri = f"file://{folder / 'feed'}?protocol=canal-json"
    return {
        "mirror": {"enabled": True},
        "window": {"engine": "local"},
        "feed": [{"name": "files", "sink-uri": uri, "start-ts": "0"}],
    }


def build_source(server: MariaDb) -> dict[str, Any]:
    """The section [[source]] of the recorded feeder, for `server`."""
    return {"name": "shop", "host": server.host, "port": server.port, "start": {"mode": "snapshot"}}


def build_target(server: MariaDb) -> dict[str, Any]:
    """The section [target] for `server`."""
    return {"db-type": "mariadb", "host": server.host, "port": server.port, "user": server.user}


def change_rows(server: MariaDb, seed: int) -> None:
    """Commit 30 transactions to `t` and `log` of the recorded deployment, drawn from `seed`."""
    with server.connect() as link:
        mixed_transactions(link, "shop", seed, count=30)


def _live(folder: Path, source: MariaDb, target: MariaDb) -> dict[str, Any]:
    """Run a deployment in `folder` up to the moment that is recorded; return what the test needs to know."""
    sections, to = build_sections(folder), build_target(target)
    execute(
        source,
        "CREATE DATABASE shop",
        "CREATE TABLE shop.t (id INT PRIMARY KEY, u VARCHAR(30) UNIQUE, v DOUBLE)",
        "CREATE TABLE shop.log (n INT, what VARCHAR(30))",
        "CREATE TABLE shop.item (id BIGINT UNSIGNED PRIMARY KEY, note TEXT, at TIMESTAMP(3) DEFAULT NOW(3),"
        " bits BIT(5), kind ENUM('a', 'é') DEFAULT 'é', bytes VARBINARY(9), doc JSON,"
        " twice INT GENERATED ALWAYS AS (id * 2) STORED)",
        "INSERT INTO shop.item (id, note, bits, bytes, doc) VALUES (1, 'große', b'101', X'00FF', '{\"a\": [1, 2.5]}')",
    )
    change_rows(source, 1)
    with FedCluster(folder, target, [build_source(source)], pumps=1) as cluster:
        cluster.start_feeder()
        run_windows(cluster, to, **sections)
        execute(source, "UPDATE shop.item SET note = 'second'")
        change_rows(source, 2)
        cluster.follow(source)
        run_windows(cluster, to, **sections)
        early = {"ts": str(cluster.settle()), "rows": _read_ids(source)}
        execute(source, "ALTER TABLE shop.item ADD COLUMN more DECIMAL(20, 4) NOT NULL DEFAULT 1.5")
        change_rows(source, 3)
        cluster.follow(source)
        try:
            run_windows(cluster, {**to, "port": 1}, **sections)
        except BinlakeError:
            pass  # expected: the window is landed, and this target does not answer
        else:
            raise AssertionError("the window was applied to a target that does not exist")
        execute(source, "UPDATE shop.item SET note = 'third'")
        change_rows(source, 4)
        cluster.follow(source)
        cluster.settle()
        gtids = str(rows(source, "SELECT @@GLOBAL.gtid_binlog_state")[0][0])
    return {"early": early, "gtid_binlog_state": gtids}


def _read_ids(server: MariaDb) -> list[int]:
    return [int(key) for (key,) in rows(server, "SELECT id FROM shop.t ORDER BY id")]


def dump_tables(server: MariaDb) -> list[str]:
    """Statements that create all databases and tables of `server` with their rows."""
    statements = []
    for db in server.list_databases():
        statements.append(f"CREATE DATABASE `{db}`")
        for (table,) in rows(server, "SELECT table_name FROM information_schema.tables WHERE table_schema = %s", (db,)):
            statements += _dump_table(server, f"`{db}`.`{table}`", _list_stored_columns(server, db, table))
    return statements


def _list_stored_columns(server: MariaDb, db: str, table: str) -> str:
    columns = "SELECT column_name FROM information_schema.columns WHERE table_schema = %s AND table_name = %s"
    found = rows(server, f"{columns} AND is_generated = 'NEVER' ORDER BY ordinal_position", (db, table))
    return ", ".join(f"`{name}`" for (name,) in found)


def _dump_table(server: MariaDb, table: str, columns: str) -> list[str]:
    with server.connect() as link, link.cursor() as cursor:
        cursor.execute(f"SHOW CREATE TABLE {table}")
        created = str(cursor.fetchall()[0][1]).partition("(")[2]
        cursor.execute(f"SELECT {columns} FROM {table}")
        texts = [
            ", ".join(f"X'{value.hex()}'" if isinstance(value, bytes) else link.escape(value) for value in row)
            for row in cursor.fetchall()
        ]
    return [f"CREATE TABLE {table} ({created}", *(f"INSERT INTO {table} ({columns}) VALUES ({one})" for one in texts)]


if __name__ == "__main__":
    print(record_release(sys.argv[1]))
