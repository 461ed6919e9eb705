"""Files of a feed: each message once wherever a run is killed; readers of the metadata never see half a window."""

from __future__ import annotations

import json
from dataclasses import replace

import pyarrow as pa
import pytest
from support.feedmessages import Change, commit_ts, messages_of, window_of
from support.memorystore import Killed, MemoryStore

from binlake.config.sinkuri import StorageSection
from binlake.errors import DamagedManifest, Permanent
from binlake.feed.files.layout import build_index_path, parse_data_path, parse_index_number
from binlake.feed.files.publisher import FilePublisher, read_checkpoint

STORAGE = StorageSection("file", "/nowhere", file_size=40, index_width=6)
CHANGES = [Change(second, f"{second:02}-{table}", table) for second in range(1, 13) for table in ("item", "log")]
WINDOWS = [(0, 5), (5, 6), (6, 12)]


def publish(store: MemoryStore, windows: list[tuple[int, int]], feed: str = "demo.files", parts: int = 1) -> int:
    sent = 0
    for window in windows:
        with FilePublisher(STORAGE, "canal-json", feed, store=store) as publisher:
            sent += publisher.publish_window(*window_of(*window, CHANGES, parts))
    return sent


def publish_until_killed(store: MemoryStore) -> int:
    """Publish the windows until the store kills the run; return the end of the last window published."""
    done = 0
    for window in WINDOWS:
        try:
            publish(store, [window])
        except Killed:
            return done
        done = window[1]
    raise AssertionError("nothing was killed")


def lines(store: MemoryStore, *, by_index: bool) -> list[str]:
    """What a reader sees: all data files up to each folder's index, or, without indexes, all files."""
    found = sorted(
        (one for path in store.files if (one := parse_data_path(path))), key=lambda one: (one.folder, one.number)
    )
    last = {one.folder: parse_index_number(store.get(build_index_path(one.folder)), one.folder) for one in found}
    whole = [one for one in found if not by_index or one.number <= last[one.folder]]
    return [line for one in whole for line in store.files[one.path].decode().split("\r\n") if line]


def publish_undisturbed() -> MemoryStore:
    store = MemoryStore()
    assert publish(store, WINDOWS) == len(CHANGES)
    return store


#
def test_everything_is_written_once_and_in_order() -> None:
    store = publish_undisturbed()
    for table in ("item", "log"):
        own = [line for line in lines(store, by_index=True) if line.endswith(table)]
        assert own == [f"{second:02}-{table}" for second in range(1, 13)]
    assert json.loads(store.files["metadata"]) == {"checkpoint-ts": commit_ts(12)}
    for folder in {one.folder for path in store.files if (one := parse_data_path(path))}:
        numbers = [one.number for path in store.files if (one := parse_data_path(path)) and one.folder == folder]
        assert sorted(numbers) == list(range(1, len(numbers) + 1))
    writes = store.writes
    assert publish(store, WINDOWS) == 0
    assert store.writes == writes


def test_definition_is_written_once() -> None:
    store = publish_undisturbed()
    schemas = [path for path in store.puts if "/meta/schema_" in path]
    assert sorted(path.split("/")[1] for path in schemas) == ["item", "log"]
    assert json.loads(store.files[schemas[0]])["TableVersion"] == commit_ts(0)
    with FilePublisher(STORAGE, "canal-json", "demo.files", store=store) as publisher:
        for window in ((12, 13), (13, 14)):
            publisher.publish_window(*window_of(*window, CHANGES))
    assert [path for path in store.puts if "/meta/schema_" in path] == schemas


def test_empty_window_claims_the_folder_and_moves_the_checkpoint() -> None:
    store = MemoryStore()
    assert publish(store, [(20, 30)]) == 0
    assert read_checkpoint(store) == commit_ts(30)
    with pytest.raises(Permanent, match=r"other=demo\.files"):
        publish(store, WINDOWS, "demo.other")


@pytest.mark.parametrize(
    ("key", "value", "begin"), [("k", "v", b"Obj\x01"), (None, "v", b"text\r\n"), ("k", None, b"text\r\n")]
)
def test_messages_with_schemas_are_an_avro_container(key: str | None, value: str | None, begin: bytes) -> None:
    record = '{"type":"record","name":"item","namespace":"default.shop","fields":[]}'
    manifest, _ = window_of(0, 2, [Change(1, "text")])
    table = messages_of([Change(1, "text")])
    for name, schema in (("key_schema", key), ("value_schema", value)):
        table = table.set_column(table.schema.get_field_index(name), name, pa.array([schema], pa.string()))
    store = MemoryStore()
    with FilePublisher(STORAGE, "avro", "demo.files", store=store) as publisher:
        publisher.publish_window(replace(manifest, schemas={"k": record, "v": record}), lambda _: iter([table]))
    [content] = [content for path, content in store.files.items() if parse_data_path(path)]
    assert content.startswith(begin)


# S2-01, R-31
@pytest.mark.long
@pytest.mark.parametrize("late", [False, True])
def test_kill_at_any_write_repeats_nothing_and_shows_no_half_window(late: bool) -> None:
    whole = publish_undisturbed()
    for fails in range(1, whole.writes + 1):
        store = MemoryStore()
        store.fails, store.late = fails, late
        done = publish_until_killed(store)
        checkpoint = read_checkpoint(store) or 0
        # The last write of a window makes it visible.
        assert checkpoint in {commit_ts(done) if done else 0} | {commit_ts(hi) for _, hi in WINDOWS if late}
        shown = [line for line in lines(store, by_index=True) if commit_ts(int(line[:2])) <= checkpoint]
        wanted = [change.value for change in CHANGES if change.commit_ts <= checkpoint]
        assert sorted(shown) == sorted(wanted)
        publish(store, WINDOWS, parts=3)
        assert store.files == whole.files, f"killed at write {fails}"


def test_files_end_after_transactions_for_any_batch_size() -> None:
    whole = publish_undisturbed()
    for parts in (2, 5, 30):
        store = MemoryStore()
        publish(store, WINDOWS, parts=parts)
        assert store.files == whole.files
    sizes = [len(content) for path, content in whole.files.items() if parse_data_path(path)]
    # 40 bytes of values, keys and line ends are two lines.
    assert max(sizes) <= 60


def test_started_window_encoded_differently_is_written_once() -> None:
    """The feed's section changed meanwhile: encode made the waiting window again."""
    manifest, read = window_of(6, 12, [replace(change, value=f"{change.value} again") for change in CHANGES])
    before, whole = MemoryStore(), publish_undisturbed()
    publish(before, WINDOWS[:2])
    for fails in range(before.writes + 1, whole.writes + 1):
        store = MemoryStore()
        store.fails = fails
        publish_until_killed(store)
        with FilePublisher(STORAGE, "canal-json", "demo.files", store=store) as publisher:
            publisher.publish_window(manifest, read)
        own = [line for line in lines(store, by_index=True) if line[3:].startswith("item")]
        assert own == [f"{second:02}-item{' again' * (second > 6)}" for second in range(1, 13)], fails


def test_folder_belongs_to_one_feed() -> None:
    store = publish_undisturbed()
    with pytest.raises(Permanent, match=r"other=demo\.files"):
        publish(store, WINDOWS, "demo.other")
    foreign = MemoryStore()
    foreign.files["metadata"] = b'{"checkpoint-ts":5}'
    with pytest.raises(Permanent, match="not Binlake's"):
        publish(foreign, WINDOWS)


@pytest.mark.parametrize(
    ("path", "content", "error"),
    [
        ("metadata", b"{}", "`metadata` is damaged"),
        ("_binlake/plan", b"[]", "the plan of a feed's files is damaged"),
        (f"shop/item/{commit_ts(0)}/2026-01-01/meta/CDC.index", b"CDC", "an index of a feed's files is damaged"),
    ],
)
def test_damaged_files_are_reported(path: str, content: bytes, error: str) -> None:
    store = MemoryStore()
    publish(store, WINDOWS[:1])
    assert path in store.files
    store.files[path] = content
    with pytest.raises((Permanent, DamagedManifest), match=error):
        publish(store, WINDOWS[1:])
