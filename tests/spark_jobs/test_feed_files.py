"""A feed from the lake to files: the files alone reproduce the tables; an interrupted publish leaves no duplicates."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import fastavro
import pytest
from history import History, shop
from lakehouse import Lakehouse, Source

from binlake.cli import run
from binlake.common.filestore import open_store
from binlake.feed.files.layout import parse_data_path
from binlake.feed.files.publisher import FilePublisher
from binlake.spark_jobs.job.context import Bounds
from binlake.spark_jobs.stages import encode, publish

if TYPE_CHECKING:
    from deploy.local.s3 import S3

pytestmark = pytest.mark.long

FEED = "files"


class Fed:
    """A lake with one feed that writes files."""

    def __init__(self, root: Path, history: History, words: str = "protocol=avro", **feed: Any) -> None:
        self.files = root / "files"
        section = {"name": FEED, "sink-uri": f"file://{self.files}?{words}", "rules": ["shop.item"], **feed}
        config = {"feed": [section], "mirror": {"enabled": False}}
        self.lakehouse = Lakehouse(None, root / "lake", Source.of_workload(history.workload), config)
        self.ctx = self.lakehouse.context()
        self.windows = [Bounds(lo, hi) for lo, hi in zip([0, *history.cuts], history.cuts, strict=False)]

    def send(self, bounds: Bounds) -> int:
        self.lakehouse.land(bounds.lo, bounds.hi)
        encode.run(self.ctx, bounds, FEED)
        return publish.run(self.ctx, bounds, FEED).rows

    def contents(self) -> dict[str, bytes]:
        return {at.relative_to(self.files).as_posix(): at.read_bytes() for at in self.files.rglob("*") if at.is_file()}


def records(files: dict[str, bytes]) -> list[dict[str, Any]]:
    """All records of data files, in the order of versions, dates and numbers."""
    found = sorted(
        (one for path in files if (one := parse_data_path(path))), key=lambda f: (f.version, f.date, f.number)
    )
    return [record for one in found for record in fastavro.reader(io.BytesIO(files[one.path]))]


# S2-01, S2-48, S0-04, S0-08, R-31
def test_files_alone_reproduce_the_table(tmp_path: Path) -> None:
    history = shop()
    fed = Fed(tmp_path, history)
    sent = [fed.send(bounds) for bounds in fed.windows]
    files = fed.contents()
    found = records(files)
    assert len(found) == sum(sent)
    assert [record["commit_ts"] for record in found] == sorted(record["commit_ts"] for record in found)
    rows = {record["key"]["id"]: record["value"] for record in found}
    wanted = {int(row["id"] or 0): row for row in history.workload.rows["shop", "item"]}
    assert {key: value["name"] for key, value in rows.items() if value} == {k: row["name"] for k, row in wanted.items()}
    assert rows[4] is None
    assert {k: v.get("stock", 5) for k, v in rows.items() if v} == {k: int(r["stock"] or 0) for k, r in wanted.items()}
    assert json.loads(files["metadata"]) == {"checkpoint-ts": history.cuts[-1]}


def test_object_store_gets_the_same_files(tmp_path: Path, s3: S3) -> None:
    s3.create_bucket("feeds")
    history = shop()
    local = Fed(tmp_path / "local", history)
    access = f"endpoint={quote(s3.url, safe='')}&region=us-east-1&access-key=any&secret-access-key=any"
    uri = f"s3://feeds/{tmp_path.name}?protocol=avro&{access}"
    remote = Fed(tmp_path / "remote", history, **{"sink-uri": uri})
    assert [local.send(bounds) for bounds in local.windows] == [remote.send(bounds) for bounds in remote.windows]
    storage = remote.ctx.replication.require_feed(FEED).sink.storage
    assert storage is not None
    store = open_store(storage)
    assert {path: store.get(path) for path in store.list("")} == local.contents()


def test_folder_has_definitions_and_an_index(tmp_path: Path) -> None:
    history = shop()
    fed = Fed(tmp_path, history)
    for bounds in fed.windows:
        fed.send(bounds)
    files = fed.contents()
    schemas = [json.loads(text) for path, text in sorted(files.items()) if path.startswith("shop/item/meta/schema_")]
    assert [schema["Query"].split(" ")[0] for schema in schemas] == ["CREATE", "ALTER"]
    assert [schema["TableColumnsTotal"] for schema in schemas] == [3, 4]
    assert schemas[1]["TableColumns"][0] == {
        "ColumnName": "id", "ColumnType": "INT", "ColumnPrecision": "11", "ColumnNullable": "false",
        "ColumnIsPk": "true",
    }  # fmt: skip
    data = [one for path in files if (one := parse_data_path(path))]
    assert {one.version for one in data} == {schema["TableVersion"] for schema in schemas}
    for folder in {one.folder for one in data}:
        last = max(one.number for one in data if one.folder == folder)
        assert files[f"{folder}/meta/CDC.index"].decode() == f"CDC{last:020}.avro\n"


def test_publish_killed_after_writing_files_repeats_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fed = Fed(tmp_path, shop())
    fed.send(fed.windows[0])
    done = fed.contents()
    # Imitate a kill between the last file and the lake's event.
    recorded = fed.ctx.windows.read_events(stage="publish", state="done")
    fed.lakehouse.land(fed.windows[1].lo, fed.windows[1].hi)
    encode.run(fed.ctx, fed.windows[1], FEED)
    with monkeypatch.context() as patch:
        patch.setattr("binlake.spark_jobs.stages.publish.WindowEvent", _stop)
        with pytest.raises(KeyboardInterrupt):
            publish.run(fed.ctx, fed.windows[1], FEED)
    written = fed.contents()
    assert set(written) > set(done)
    assert publish.run(fed.ctx, fed.windows[1], FEED).rows == 0
    assert fed.contents() == written
    assert len(fed.ctx.windows.read_events(stage="publish", state="done")) == len(recorded) + 1


# S0-08, S2-36
@pytest.mark.parametrize("protocol", ["csv", "canal-json"])
def test_text_files_contain_every_change_of_every_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], protocol: str
) -> None:
    history = shop()
    words = f"protocol={protocol}" + ("&enable-tidb-extension=true" if protocol == "canal-json" else "")
    fed = Fed(tmp_path, history, words, rules=["shop.*"], csv={"include-commit-ts": True}, terminator="\n")
    sent = sum(fed.send(bounds) for bounds in fed.windows)
    toml = tmp_path / "demo.toml"
    toml.write_text(
        f'name = "demo"\n[lake]\npath = "{tmp_path / "lake"}"\n[[feed]]\nname = "{FEED}"\n'
        f'sink-uri = "file://{fed.files}?{words}"\ncsv = {{include-commit-ts = true}}\nterminator = "\\n"\n'
    )
    assert run(["feed", "read", "--replication", str(toml), "--feed", FEED, "--output", "json"]) == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    # The last window's watermark is not in any file.
    changes = fed.ctx.windows.read_events(stage="merge", state="done")
    assert len(events) == sum(event["rows"] for event in changes) + 1
    assert len(events) <= sent
    last = {}
    for event in events:
        if event["table"] == "item":
            row = event["value"] if protocol == "csv" else event["message"]["data"][0]
            last[row["id"]] = None if event["op"] == "d" else row["name"]
    rows = {row["id"]: row["name"] for row in history.workload.rows["shop", "item"]}
    assert {key: name for key, name in last.items() if name is not None} == rows


def test_feed_read_reads_the_feed_of_a_replication(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    history = shop()
    fed = Fed(tmp_path, history)
    fed.send(fed.windows[0])
    fed.send(fed.windows[1])
    toml = tmp_path / "demo.toml"
    toml.write_text(
        f'name = "demo"\n[lake]\npath = "{tmp_path / "lake"}"\n'
        f'[[feed]]\nname = "{FEED}"\nsink-uri = "file://{fed.files}?protocol=avro"\nrules = ["shop.item"]\n'
    )
    words = ["feed", "read", "--replication", str(toml), "--feed", FEED, "--table", "shop.item"]
    assert run([*words, "--from", str(history.cuts[0])]) == 0
    shown = [line.split("  ") for line in capsys.readouterr().out.splitlines()]
    assert [line[2] for line in shown] == ["-", "d", "-"]
    assert [line[3] for line in shown] == ["shop.item"] * 3
    assert shown[1][4:] == ['{"id": 4}']
    assert run(["feed", "read", "--replication", str(toml)]) == 1
    assert "give a URI, or --replication FILE and --feed NAME" in capsys.readouterr().err


def _stop(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def test_window_without_changes_moves_the_checkpoint(tmp_path: Path) -> None:
    history = shop()
    fed = Fed(tmp_path, history, rules=["shop.nothing"])
    assert fed.send(fed.windows[0]) == 0
    assert set(fed.contents()) == {"metadata", "_binlake/plan"}
    with FilePublisher(fed.ctx.replication.require_feed(FEED).sink.storage, "avro", f"demo.{FEED}") as files:
        assert files.checkpoint == history.cuts[0]
