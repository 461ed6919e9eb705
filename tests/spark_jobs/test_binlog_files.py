"""A feed of the lake to binlog files: the files alone reproduce the tables, and `binlake files` describes them."""

from __future__ import annotations

import json
import zlib
from dataclasses import replace
from pathlib import Path

import pytest
from history import History, shop
from lakehouse import Lakehouse, Source

from binlake.binlogfile.folder import INDEX_PATH as PATH
from binlake.binlogfile.folder import read_index
from binlake.binlogfile.framing import pack_record
from binlake.binlogfile.reading import DELETE, UPDATE, BinlogDdl, Item, decode_value, read_items
from binlake.cli import run
from binlake.common.filestore import LocalStore
from binlake.spark_jobs.job.context import Bounds
from binlake.spark_jobs.stages import encode, publish

pytestmark = pytest.mark.long

FEED = "backup"
Row = dict[str, object]


class Fed:
    """A lake with one feed that writes binlog files."""

    def __init__(self, root: Path, history: History) -> None:
        self.files = root / "files"
        section = {"name": FEED, "sink-uri": f"file://{self.files}?protocol=pb", "rules": ["shop.*"]}
        self.lakehouse = Lakehouse(
            None, root / "lake", Source.of_workload(history.workload), {"feed": [section], "mirror": {"enabled": False}}
        )
        self.ctx = self.lakehouse.context()
        for lo, hi in zip([0, *history.cuts], history.cuts, strict=False):
            self.lakehouse.land(lo, hi)
            encode.run(self.ctx, Bounds(lo, hi), FEED)
            publish.run(self.ctx, Bounds(lo, hi), FEED)
        self.toml = root / "demo.toml"
        self.toml.write_text(
            f'name = "demo"\n[lake]\npath = "{root / "lake"}"\n[[feed]]\nname = "{FEED}"\n'
            f'sink-uri = "file://{self.files}?protocol=pb"\nrules = ["shop.*"]\n'
        )

    def items(self) -> list[Item]:
        return list(read_items(LocalStore(self.files)))


def replayed(items: list[Item], table: str) -> dict[object, Row]:
    """The table's rows by their column `id`, after applying all files."""
    rows: dict[object, Row] = {}
    for item in items:
        for event in [] if isinstance(item, BinlogDdl) else item.events:
            if event.table != table:
                continue
            old = {column.name: decode_value(column, column.value) for column in event.columns}
            new = {c.name: decode_value(c, c.changed) for c in event.columns if c.changed is not None}
            if event.kind in (UPDATE, DELETE):
                before = rows.pop(old["id"])
                assert {name: old[name] for name in before} == before
            if event.kind != DELETE:
                row = new if event.kind == UPDATE else old
                rows[row["id"]] = row
    return rows


# S0-01, S0-08, R-18
def test_binlog_files_alone_reproduce_the_tables(tmp_path: Path) -> None:
    history = shop()
    fed = Fed(tmp_path, history)
    items = fed.items()
    assert [item.commit_ts for item in items] == sorted(item.commit_ts for item in items)
    ddls = [item for item in items if isinstance(item, BinlogDdl)]
    assert [" ".join(one.sql.split(" ")[:2]) for one in ddls] == [
        "CREATE DATABASE", "CREATE TABLE", "CREATE TABLE", "ALTER TABLE", "ALTER TABLE", "CREATE TABLE", "DROP TABLE",
        "CREATE TABLE", "TRUNCATE TABLE",
    ]  # fmt: skip
    assert [one.db for one in ddls] == ["", *["shop"] * 8]
    # Rows after the ALTER have the added column, rows before it do not.
    shown = {
        (item.commit_ts > ddls[3].commit_ts, "stock" in {column.name for column in event.columns})
        for item in items
        if not isinstance(item, BinlogDdl)
        for event in item.events
        if event.table == "item"
    }
    assert shown == {(False, False), (True, True)}
    rows = history.workload.rows["shop", "item"]
    wanted = {int(row["id"] or 0): (row["name"], float(row["price"] or 0)) for row in rows}
    assert {key: (row["name"], row["price"]) for key, row in replayed(items, "item").items()} == wanted


def test_feed_read_shows_binlog_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fed = Fed(tmp_path, shop())
    assert run(["feed", "read", f"file://{fed.files}?protocol=pb", "--table", "shop.item", "--output", "json"]) == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    wanted = sum(
        event.table == "item" for item in fed.items() if not isinstance(item, BinlogDdl) for event in item.events
    )
    assert len(events) == wanted > 3
    assert {event["op"] for event in events} == {"c", "u", "d"}


def test_files_that_differ_from_the_lake_are_detected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fed = Fed(tmp_path, shop())
    verify = ["files", "verify", "--replication", str(fed.toml), "--feed", FEED, "--output", "json"]
    assert run(verify) == 0
    assert json.loads(capsys.readouterr().out)["problems"] == []
    # Imitate a writer that lost a transaction: whole files, and an index that agrees with them.
    lost = next(item for item in fed.items() if not isinstance(item, BinlogDdl) and len(item.events) == 2)
    store = LocalStore(fed.files)
    index = read_index(store)
    assert index is not None
    [file] = index.files
    data = (store.get(file.name) or b"").replace(pack_record(lost.message.SerializeToString()), b"")
    store.put(file.name, data)
    shorter = replace(file, size=len(data), records=file.records - 1, crc=zlib.crc32(data))
    store.put(PATH, replace(index, files=(shorter,)).to_json())
    assert run(["files", "verify", str(fed.files)]) == 0
    capsys.readouterr()
    assert run(verify) == 1
    [problem] = json.loads(capsys.readouterr().out)["problems"]
    assert problem.endswith(f": {lost.commit_ts}: 0 in the files, 2 in the lake")
