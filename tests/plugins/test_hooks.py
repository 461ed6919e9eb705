"""Connections of Airflow: its UI tests them with Binlake's hooks, and secrets backends reach the jobs of tasks."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from airflow.sdk.configuration import clear_secrets_backends_cache
from support.mariadb import MariaDb
from support.replication_files import write_replication

from binlake.common import secrets
from binlake.config import load_replication
from binlake.errors import ConfigError
from binlake.lake.access import Access
from binlake.pump_service.pd import PlacementDriver
from binlake_airflow.hooks import HOOKS
from binlake_airflow.operators import base, connections
from binlake_airflow.operators.connections import fetch_connections, read_connections
from binlake_airflow.operators.waiting import FreeTrigger
from binlake_airflow.provider import get_provider_info
from deploy.local.apicurio import Apicurio
from deploy.local.azurite import ACCOUNT, KEY, Azurite
from deploy.local.kafka import KafkaBroker
from deploy.local.s3 import S3

SILENT = {"host": "127.0.0.1", "port": 1}
Test = Callable[..., tuple[bool, str]]


def test_provider_names_every_hook_as_the_hook_names_itself() -> None:
    told = [tuple(entry.values()) for entry in get_provider_info()["connection-types"]]
    assert told == [(hook.conn_type, f"{hook.__module__}.{hook.__name__}", hook.hook_name) for hook in HOOKS]


@pytest.fixture
def test_of(monkeypatch: pytest.MonkeyPatch, airflow_db: Path) -> Test:
    """Tests a connection as Airflow's UI does: by its type, from a variable of the environment."""
    assert airflow_db.is_dir()
    from airflow.models.connection import Connection

    def run(kind: str, **fields: Any) -> tuple[bool, str]:
        extra = fields.pop("extra", None)
        text = json.dumps({"conn_type": kind, **fields, **({"extra": extra} if extra else {})})
        monkeypatch.setenv("AIRFLOW_CONN_BINLAKE_TESTED", text)
        connection = Connection.from_json(text, conn_id="binlake_tested")
        is_ok, found = connection.test_connection()
        return bool(is_ok), str(found)

    return run


@pytest.mark.mariadb
def test_database(test_of: Test, mariadb: MariaDb) -> None:
    at = {"host": mariadb.host, "port": mariadb.port, "login": mariadb.user}
    is_ok, found = test_of("binlake_database", **at)
    assert (is_ok, "MariaDB" in found, "without TLS" in found) == (True, True, True)
    is_ok, found = test_of("binlake_database", **at, extra={"ssl-mode": "required"})
    assert (is_ok, "SSL is required" in found) == (False, True)
    is_ok, found = test_of("binlake_database", **at, extra={"ssl-mode": "often"})
    assert (is_ok, "the extra of the connection is wrong" in found) == (False, True)


def test_placement_driver(test_of: Test, tmp_path: Path) -> None:
    with PlacementDriver(tmp_path / "pd", cluster_id=9) as driver:
        host, _, port = driver.url.removeprefix("http://").rpartition(":")
        assert test_of("binlake_pd", host=host, port=int(port)) == (True, f"cluster 9 at {driver.url}")


@pytest.mark.process
def test_lake(test_of: Test, s3: S3, tmp_path: Path) -> None:
    (tmp_path / "orders").mkdir()
    assert test_of("binlake_lake", extra={"path": str(tmp_path)}) == (True, f"folder {tmp_path}: 1 entries")
    is_ok, found = test_of("binlake_lake", extra={"path": str(tmp_path / "none")})
    assert (is_ok, "there is no folder" in found) == (False, True)
    s3.create_bucket("hooks")
    keys = {"login": "any", "password": "any"}
    for bucket, expected in (("hooks", True), ("other", False)):
        is_ok, found = test_of("binlake_lake", **keys, extra={"path": f"s3://{bucket}/lakes", "endpoint": s3.url})
        assert (is_ok, bucket in found) == (expected, True)


@pytest.mark.process
@pytest.mark.soak  # the group of Airflow's tests starts no other store
def test_lake_in_azures_storage(test_of: Test, azurite: Azurite) -> None:
    azurite.create_container("hooks")
    for key, expected in ((KEY, True), ("bm9ib2R5", False)):
        place = {"path": f"abfss://hooks@{ACCOUNT}.dfs.core.windows.net/lakes", "endpoint": azurite.url}
        is_ok, found = test_of("binlake_lake", login=ACCOUNT, password=key, extra=place)
        assert (is_ok, "hooks" in found) == (expected, True)


@pytest.mark.process
@pytest.mark.soak
def test_broker_and_registry(test_of: Test, kafka: KafkaBroker, schema_registry: Apicurio) -> None:
    host, _, port = kafka.address.rpartition(":")
    is_ok, found = test_of("binlake_kafka", host=host, port=int(port))
    assert (is_ok, found[:9]) == (True, "1 brokers")
    parts = urlsplit(schema_registry.url)
    is_ok, found = test_of("binlake_registry", host=parts.hostname, port=parts.port, extra={"path": parts.path})
    assert (is_ok, found) == (True, f"answers at {schema_registry.url}")
    assert test_of("binlake_registry", **SILENT)[0] is False


@pytest.mark.parametrize("kind", ["binlake_database", "binlake_pd", "binlake_kafka"])
def test_silent_server_is_said(test_of: Test, kind: str) -> None:
    is_ok, found = test_of(kind, **SILENT)
    assert (is_ok, "127.0.0.1" in found or "PD" in found) == (False, True), found


@pytest.fixture
def backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A secrets backend of Airflow that has the connection `shop`; the environment has it not."""
    file = tmp_path / "connections.json"
    file.write_text(json.dumps({"shop": "mysql://u:p%40ss@h"}))
    monkeypatch.setenv("AIRFLOW__SECRETS__BACKEND", "airflow.secrets.local_filesystem.LocalFilesystemBackend")
    monkeypatch.setenv("AIRFLOW__SECRETS__BACKEND_KWARGS", json.dumps({"connections_file_path": str(file)}))
    yield
    clear_secrets_backends_cache()


@pytest.mark.usefixtures("backend")
def test_job_of_a_task_finds_the_connection_of_a_secrets_backend(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = 'db-type = "mariadb"\nuser = "airflow:shop"\npassword = "airflow:shop"'
    file = write_replication(folder, "orders", target=target)
    given: dict[str, str] = {}

    class Process:
        last_line = ""

        def __init__(self, *_: Any, **__: Any) -> None: ...

        def run(self, _: Any, env: Mapping[str, str], __: Any) -> int:
            given.update(env)
            return 0

    monkeypatch.setattr(base, "JobProcess", Process)

    class Task(base.BinlakeOperator):
        def attempt(self, _context: Mapping[str, Any], _until: float) -> Any:
            return self.run_child([])

    task = Task(task_id="t", replication="orders", replication_file=str(file))
    task.attempt({}, 0)
    assert "AIRFLOW_CONN_SHOP" not in os.environ
    read = load_replication(file, environ=given).target
    assert read is not None
    assert (read.user, read.password) == ("u", "p@ss")
    trigger = FreeTrigger(replication_file=str(file), until=0.0, lease=True)
    assert asyncio.run(trigger._fetch_secrets()) == {"AIRFLOW_CONN_SHOP": given["AIRFLOW_CONN_SHOP"]}
    assert "p%40ss" not in str(trigger.serialize())


def test_connection_that_nobody_defined_is_named(folder: Path, airflow_db: Path) -> None:
    file = write_replication(folder, "orders", target='password = "airflow:nowhere"')
    replication = load_replication(file, secrets=False)
    with pytest.raises(ConfigError, match="not defined") as refused:
        read_connections(replication)
    assert refused.value.where == {"connection": "nowhere"}
    assert asyncio.run(fetch_connections(replication)) == {}
    assert airflow_db.is_dir()


def test_pages_read_a_lake_with_a_connection_that_only_airflow_knows(
    airflow_db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert airflow_db.is_dir()
    from airflow.models.connection import Connection
    from airflow.utils.session import create_session

    from binlake_airflow import plugin

    monkeypatch.setenv("_AIRFLOW_PROCESS_CONTEXT", "server")  # as Airflow's API server sets it
    monkeypatch.setattr(connections, "_known", {})
    secrets.ask_for_connections(plugin._find_connection)
    access = Access("http://store", "", "airflow:store_of_pages")
    with pytest.raises(ConfigError, match="store_of_pages"):
        access.read_keys()
    with create_session() as session:
        session.add(Connection("store_of_pages", "aws", login="key", password="secret"))
    assert access.read_keys() == ("key", "secret")
    with create_session() as session:
        session.query(Connection).filter_by(conn_id="store_of_pages").delete()
    assert access.read_keys() == ("key", "secret")  # for a minute
    monkeypatch.setattr(connections, "_KEEP_S", 0.0)
    connections._known.clear()
    assert connections.find_connection("store_of_pages") is None
