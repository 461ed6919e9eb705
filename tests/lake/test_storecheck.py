"""`config check` and `doctor` try the object store of a lake, and say what it lacks."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from pyarrow.fs import FileSelector
from support.objectstores import ObjectStore, describe_azurite
from support.s3proxy import S3Proxy, Trouble

from binlake.config.load import check_replication
from binlake.errors import BinlakeError, ConfigError, Permanent, Transient
from binlake.health.corechecks import check_lake_folder
from binlake.lake import objects, storecheck
from binlake.lake.storecheck import LakeConfigCommand
from deploy.local.azurite import Azurite
from deploy.local.s3 import S3

pytestmark = pytest.mark.process


@pytest.fixture
def proxy(s3: S3) -> Iterator[S3Proxy]:
    with S3Proxy(s3.port) as started:
        yield started


@pytest.fixture
def bucket(s3: S3, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "any")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "key-of-nobody")
    monkeypatch.setattr(storecheck, "_RETRY_S", 0.5)
    name = f"check-{time.time_ns()}"
    s3.create_bucket(name)
    return name


def write_file(folder: Path, bucket: str, endpoint: str, root: str = "") -> Path:
    path = folder / "r.toml"
    path.write_text(
        f"""name = "r"
[source]
pd-urls = ["http://127.0.0.1:1"]
[lake]
path = "{root or f"s3://{bucket}"}/lakes"
storage = {{ endpoint = "{endpoint}" }}
[window]
engine = "local"
"""
    )
    return path


def check(file: Path) -> int:
    command, parser = LakeConfigCommand(), argparse.ArgumentParser()
    command.add_arguments(parser)
    return command.run(parser.parse_args(["check", str(file)]))


def test_a_store_that_serves_a_lake_passes_and_keeps_nothing(
    tmp_path: Path, bucket: str, proxy: S3Proxy, s3: S3, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_file(tmp_path, bucket, proxy.url)
    assert check(file) == 0
    printed = capsys.readouterr().out
    assert json.loads(printed)["lake"]["path"].endswith("/lakes")
    assert "key-of-nobody" not in printed
    assert {one.kind for one in proxy.take_requests()} == {"PUT", "LIST", "POST"}
    (finding,) = check_lake_folder(check_replication(file))
    assert (finding.verdict, finding.found) == (
        "ok", f"s3://{bucket}/lakes/r: put, conditional put, list and delete were tried"
    )  # fmt: skip
    assert "<Key>" not in httpx.get(f"{s3.url}/{bucket}").text


@pytest.mark.parametrize(
    ("trouble", "kind", "words"),
    [
        (Trouble(refuses="InvalidAccessKeyId"), Permanent, "refuses to put objects: InvalidAccessKeyId .*AWS_ACC"),
        (Trouble(refuses="SignatureDoesNotMatch"), Permanent, "refuses to put objects: .*SignatureDoesNotMatch"),
        (Trouble(refuses="AccessDenied"), Permanent, "refuses to put objects: .*it must list, get, put and delete"),
        (Trouble(ignores=("if-none-match",)), ConfigError, r"ignores the condition of a put \(If-None-Match\)"),
        (Trouble(ignores=("if-match",)), ConfigError, r"ignores the condition of a put \(If-Match\)"),
        (Trouble(fails=1), Transient, "does not answer"),
        (Trouble(slow_down=1), Transient, "does not answer"),
    ],
)
def test_what_a_store_lacks_is_said_in_our_words(
    tmp_path: Path, bucket: str, proxy: S3Proxy, s3: S3, trouble: Trouble, kind: type[BinlakeError], words: str
) -> None:
    file = write_file(tmp_path, bucket, proxy.url)
    proxy.set_trouble(trouble)
    with pytest.raises(kind, match=f"the lake's object store {words}") as refused:
        check(file)
    assert refused.value.where == {"lake": f"s3://{bucket}/lakes/r", "endpoint": proxy.url}
    assert "key-of-nobody" not in str(refused.value)
    with pytest.raises(kind, match=words):
        list(check_lake_folder(check_replication(file)))
    assert "<Key>" not in httpx.get(f"{s3.url}/{bucket}").text


def test_a_bucket_that_does_not_exist_is_said(tmp_path: Path, bucket: str, s3: S3) -> None:
    with pytest.raises(ConfigError, match="has no such bucket"):
        check(write_file(tmp_path, f"{bucket}-other", s3.url))


def test_a_store_out_of_reach_is_said(tmp_path: Path, bucket: str) -> None:
    with pytest.raises(Transient, match=r"does not answer: .*check `lake.storage`"):
        check(write_file(tmp_path, bucket, "http://127.0.0.1:9"))


@pytest.fixture
def azure(azurite: Azurite, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    store = describe_azurite(azurite)
    for name, value in store.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(storecheck, "_RETRY_S", 0.5)
    return store


def write_azure_file(folder: Path, store: ObjectStore, container: str, url: str) -> Path:
    return write_file(folder, "", store.build_endpoint(url), store.locate(container))


def test_a_container_that_serves_a_lake_passes_and_keeps_nothing(
    tmp_path: Path, azure: ObjectStore, azurite: Azurite, capsys: pytest.CaptureFixture[str]
) -> None:
    container = f"check-{time.time_ns()}"
    azure.create(container)
    with S3Proxy(azure.port) as proxy:
        file = write_azure_file(tmp_path, azure, container, proxy.url)
        assert check(file) == 0
        assert azure.environment["AZURE_STORAGE_ACCOUNT_KEY"] not in capsys.readouterr().out
        assert {one.kind for one in proxy.take_requests()} == {"PUT", "LIST", "POST"}
    assert azurite.open_files().get_file_info(FileSelector(container, recursive=True)) == []


def test_what_an_account_lacks_is_said_in_our_words(
    tmp_path: Path, azure: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_azure_file(tmp_path, azure, "nowhere", f"http://127.0.0.1:{azure.port}")
    with pytest.raises(ConfigError, match="has no such container"):
        check(file)
    azure.create("nowhere")
    # The client takes them from the environment once.
    objects.build_objects.cache_clear()
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "bm9ib2R5")
    with pytest.raises(Permanent, match=r"refuses to put objects: AuthorizationFailure .*AZURE_STORAGE_ACCOUNT_KEY or"):
        check(file)
    objects.build_objects.cache_clear()
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_KEY")
    with pytest.raises(Permanent, match=r"there are no credentials .*AZURE_CLIENT_SECRET"):
        check(file)
