"""encode makes the same messages in the driver and in tasks, for any batch size; its windows are limited."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from history import shop
from lakehouse import Lakehouse, Source
from support.engines import HostileEngine
from support.workload import Workload, integer, text

from binlake.errors import ConfigError
from binlake.feed.avro import AvroFormat
from binlake.feed.manifest import EncodeManifest
from binlake.feed.sealed import read_sealed
from binlake.feed.state import FeedState
from binlake.pipeline import name_feed_sink
from binlake.spark_jobs.engine import exchange
from binlake.spark_jobs.job.context import Bounds, StageContext
from binlake.spark_jobs.shared.messages import join_transactions
from binlake.spark_jobs.stages import encode

WAYS = ("here", "here-few", "tasks", "tasks-whole")


def feed(name: str, **more: Any) -> dict[str, Any]:
    uri = "kafka://127.0.0.1:9092/t?protocol=avro&enable-tidb-extension=true"
    return {"name": name, "sink-uri": uri, "schema-registry": "http://127.0.0.1:8081"} | more


def draw_workload(seed: int) -> Workload:
    """Transactions of up to 30 changes on three tables, one of which the feed leaves out; keys move, a column is
    added.
    """
    draw, w = random.Random(seed), Workload()
    w.create_database("d")
    for name in ("a", "b", "out"):
        w.create_table("d", name, [integer("id"), text("name")], ["id"])
    for number in range(60):
        if number == 30:
            w.add_column("d", "a", integer("n", default="5"))
        change = w.begin()
        for key in {(draw.choice("abo"), draw.randrange(40)) for _ in range(draw.choice((1, 2, 30)))}:
            _change(change, draw, w, {"a": "a", "b": "b", "o": "out"}[key[0]], key[1])
        change.commit()
    return w


def _change(change: Any, draw: random.Random, w: Workload, table: str, key: int) -> None:
    there = next((row for row in w.rows["d", table] if row["id"] == str(key)), None)
    if there is None:
        change.insert("d", table, id=key, name=draw.choice(("", "x", "ü" * 30)))
    elif draw.random() < 0.3:
        change.delete("d", table, **there)
    else:
        moves = draw.random() < 0.3
        new = {"id": 1000 + draw.randrange(10**6)} if moves else {}
        change.update("d", table, dict(there), name=draw.choice(("y", "z")), **new)


def manifest_of(ctx: StageContext, name: str) -> EncodeManifest:
    events = ctx.windows.read_events(stage="encode", state="done", sealed=True)
    (text,) = [event["manifest"] for event in events if event["sink"] == name_feed_sink(name)]
    return EncodeManifest.from_json(text)


# S2-02, S2-48
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.soak)])
def test_any_tasks_make_the_same_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    workload = draw_workload(seed)
    config = {"feed": [feed(name, rules=["d.*", "!d.out"]) for name in WAYS]}
    lake = Lakehouse(None, tmp_path, Source.of_workload(workload), config)
    bounds, found = lake.land(0, workload.clock()), {}
    for name in WAYS:
        with monkeypatch.context() as patched:
            if "few" in name:
                patched.setattr(exchange, "BATCH_ROWS", 7)
            if "tasks" in name:
                patched.setattr(StageContext, "choose_engine", lambda *_: HostileEngine(random.Random(seed)))
            if "whole" in name:
                patched.setattr(AvroFormat, "whole_transactions", True)
            encode.run(lake.context(), bounds, name)
        manifest = manifest_of(lake.context(), name)
        rows = [row for part in read_sealed(lake.context().paths, manifest, None) for row in part.to_pylist()]
        found[name] = manifest.digest, manifest.schemas, rows
    assert len(found["here"][2]) > 300
    assert {row["table"] for row in found["here"][2]} == {"a", "b"}
    assert all(found[name] == found["here"] for name in WAYS)


def test_rerun_replaces_the_files_of_a_killed_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    history = shop()
    config = {"feed": [feed("f", rules=["shop.item"])]}
    lake = Lakehouse(None, tmp_path, Source.of_workload(history.workload), config)
    bounds = lake.land(0, history.cuts[0])

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("binlake.lake.windowlog.WindowLog.record", die)
        with pytest.raises(KeyboardInterrupt):
            encode.run(lake.context(), bounds, "f")
    encode.run(lake.context(), bounds, "f")
    paths, manifest = lake.context().paths, manifest_of(lake.context(), "f")
    assert manifest.messages == 40
    assert DeltaTable(paths.locate_table("feed/f")).to_pyarrow_dataset().count_rows() == 40
    assert sum(part.num_rows for part in read_sealed(paths, manifest, None)) == 40


def test_failed_encode_leaves_no_file(tmp_path: Path) -> None:
    history = shop()
    lake = Lakehouse(None, tmp_path, Source.of_workload(history.workload), {"feed": [feed("f")]})
    bounds = lake.land(0, history.cuts[0])
    with pytest.raises(ConfigError, match=r"shop\.log"):
        encode.run(lake.context(), bounds, "f")
    assert not list(Path(lake.context().paths.locate_table("feed/f")).glob("window=*/*.parquet"))


@pytest.mark.long
def test_stopped_feed_takes_several_landed_windows_at_a_time(tmp_path: Path) -> None:
    w = Workload()
    w.create_database("d")
    w.create_table("d", "t", [integer("id"), text("name")], ["id"])
    cuts = [0]
    for number in range(6):
        w.begin().insert("d", "t", id=number, name="n" * 40).commit()
        cuts.append(w.clock())
    lake = Lakehouse(None, tmp_path, Source.of_workload(w), {"feed": [feed("f")]})
    landed = [lake.land(lo, hi) for lo, hi in itertools.pairwise(cuts)]
    size = lake.context().windows.read_manifests(*cuts[-2:])[0].bytes
    of_feed = lake.context().replication.require_feed("f")
    assert encode.list_next_windows(lake.context(), of_feed, FeedState(), Bounds(0, cuts[-1])) == [Bounds(0, cuts[-1])]
    config = {**lake.config, "window": {"driver-bytes": 2 * size}}
    small = Lakehouse(None, tmp_path, lake.source, config)
    assert encode.run(lake.context(), landed[1], "f").rows == 2
    result = encode.run(small.context(), landed[-1], "f")
    assert (result.lo, result.hi, result.rows) == (cuts[2], cuts[-1], 4)
    events = small.context().windows.read_events(stage="encode", state="done")
    assert [(event["lo"], event["hi"]) for event in events][-2:] == [(cuts[2], cuts[4]), (cuts[4], cuts[6])]
    assert encode.run(small.context(), landed[-1], "f").state == "already"


def test_transactions_are_joined_across_batches() -> None:
    rows = [{"commit_ts": ts, "start_ts": ts - 1, "seq": seq} for ts in (5, 7, 9) for seq in range(ts - 4)]
    whole = pa.RecordBatch.from_pylist(rows)
    for size in (1, 2, 3, 4, 100):
        cut = [whole.slice(first, size) for first in range(0, whole.num_rows, size)]
        parts = list(join_transactions(cut))
        assert [row for part in parts for row in part.to_pylist()] == rows
        held = [set(part.column("commit_ts").to_pylist()) for part in parts]
        assert sum(map(len, held)) == 3, "a transaction must be in one part"
