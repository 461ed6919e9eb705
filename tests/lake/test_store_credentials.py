"""Keys of a lake's object store from an Airflow connection: all three clients sign their requests with them."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import quote

import deltalake
import obstore
import pyarrow as pa
import pyarrow.fs as fs
import pytest
from deltalake.exceptions import DeltaError
from obstore.exceptions import BaseError
from support.objectstores import describe_azurite

from binlake.common import secrets
from binlake.errors import ConfigError
from binlake.lake import objects, store
from binlake.lake.access import Access, find_access, register_access
from deploy.local.azurite import Azurite


class Store(ThreadingHTTPServer):
    """Refuses all requests, and keeps the key ids that sign them."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Refusal)
        self.key_ids: set[str] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Refusal(BaseHTTPRequestHandler):
    def _refuse(self) -> None:
        assert isinstance(self.server, Store)
        signed = re.search(r"Credential=([^/]+)/", self.headers.get("Authorization", ""))
        self.server.key_ids.add(signed[1] if signed else "")
        self.send_response(403)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_HEAD = do_PUT = do_POST = _refuse

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def refusing() -> Iterator[Store]:
    with Store() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "of-the-environment")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "any")
    monkeypatch.setattr("binlake.lake.access._ATTEMPTS", 1)
    monkeypatch.setattr(secrets, "_fetchers", [])


def use_all_clients(root: str) -> None:
    with pytest.raises(BaseError):
        obstore.put(objects.open_objects(root, 0.1), "one", b"1")
    with pytest.raises(OSError, match=r"ACCESS_DENIED|403"):
        store.open_files(root)[0].get_file_info(fs.FileSelector(root.partition("://")[2]))
    options = {**(store.build_delta_options(root) or {}), "max_retries": "0"}
    with pytest.raises((DeltaError, OSError)):
        deltalake.write_deltalake(f"{root}/t", pa.table({"a": [1]}), storage_options=options)


def test_login_of_the_connection_signs_the_requests_of_all_clients(
    refusing: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", "aws://of-the-connection:a%2Fsecret@")
    register_access("s3://keys/named", Access(refusing.url, "eu-west-1", "airflow:lake"))
    register_access("s3://keys/plain", Access(refusing.url, "eu-west-1"))
    use_all_clients("s3://keys/named")
    assert refusing.key_ids == {"of-the-connection"}
    assert find_access("s3://keys/named/t").read_keys() == ("of-the-connection", "a/secret")
    refusing.key_ids.clear()
    use_all_clients("s3://keys/plain")
    assert refusing.key_ids == {"of-the-environment"}


def test_connection_that_is_not_defined_is_an_error_and_never_the_environments_keys() -> None:
    register_access("s3://keys/missing", Access("", "", "airflow:nowhere"))
    with pytest.raises(ConfigError, match=r"lake\.storage\.credentials names the Airflow connection nowhere") as error:
        store.build_delta_options("s3://keys/missing")
    assert "AIRFLOW_CONN_NOWHERE" in str(error.value)


def test_processes_of_airflow_ask_airflow_and_the_environment_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    secrets.ask_for_connections({"lake": "aws://asked:secret@"}.get)
    access = Access("", "", "airflow:lake")
    assert access.read_keys() == ("asked", "secret")
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", "aws://set:secret@")
    assert access.read_keys() == ("set", "secret")


def test_executor_without_the_connection_uses_its_own_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    access = Access("http://store", "", "airflow:lake")
    assert access.drop_unknown_credentials() == Access("http://store", "")
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", "aws://set:secret@")
    assert access.drop_unknown_credentials() is access


def use_container(root: str) -> None:
    objects.put_object(root, "one", b"1")
    files, below = store.open_files(root)
    assert [one.base_name for one in files.get_file_info(fs.FileSelector(below))] == ["one"]
    deltalake.write_deltalake(f"{root}/t", pa.table({"a": [1]}), storage_options=store.build_delta_options(root))


@pytest.mark.process
def test_password_of_the_connection_is_the_key_of_an_azure_account(
    azurite: Azurite, monkeypatch: pytest.MonkeyPatch
) -> None:
    at, container = describe_azurite(azurite), f"keys-{time.time_ns()}"
    at.create(container)
    right, wrong = quote(at.environment["AZURE_STORAGE_ACCOUNT_KEY"], safe=""), "bm9ib2R5"
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", wrong)
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", f"wasb://:{right}@")
    monkeypatch.setenv("AIRFLOW_CONN_OTHER", f"wasb://:{wrong}@")
    root = f"{at.locate(container)}/lakes"
    register_access(f"{root}/a", Access(azurite.url, "", "airflow:lake"))
    use_container(f"{root}/a")
    # The connection comes before the environment.
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", at.environment["AZURE_STORAGE_ACCOUNT_KEY"])
    register_access(f"{root}/b", Access(azurite.url, "", "airflow:other"))
    for use in (
        lambda: obstore.put(objects.open_objects(f"{root}/b", 0.1), "one", b"1"),
        lambda: store.open_files(f"{root}/b")[0].get_file_info(f"{container}/lakes/b/one"),
        lambda: deltalake.DeltaTable(f"{root}/b", storage_options=store.build_delta_options(f"{root}/b")),
    ):
        with pytest.raises((BaseError, OSError, DeltaError), match=r"AuthorizationFailure|403"):
            use()
    register_access(f"{root}/c", Access(azurite.url))
    use_container(f"{root}/c")
