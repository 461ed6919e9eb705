"""What all protocols share: order, the split of a moved key, and the partition of a row's changes (S2-45)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from support.feedrows import Row
from support.tidb_json import INT_PK, column, table_def, table_info

from binlake.common import arrowcolumns
from binlake.config.protocols import (
    AvroOptions,
    CanalJsonOptions,
    DebeziumOptions,
    OpenProtocolOptions,
    Options,
    SlaveBinlogOptions,
)
from binlake.ddl.definitions import LandedDdl, Segments, WindowDefinitions
from binlake.feed.messages import ORDER, MessageEncoder, count_unsent, encode_ddls, encode_watermarks
from binlake.feed.protocols import format_of
from binlake.rows.schema import TableDef
from binlake.rows.schema import mysqltypes as t
from binlake.rows.schema.state import DdlSide
from binlake.rules.topics import Dispatcher, Topics

KEYED = table_def(
    table_info(1, "keyed", [column(1, "id", t.LONG, flag=INT_PK), column(2, "v", t.VARCHAR)], pk_is_handle=True)
)
KEYLESS = table_def(table_info(2, "keyless", [column(1, "id", t.LONG), column(2, "v", t.VARCHAR)]))
SPLITTING: list[Options] = [AvroOptions(), CanalJsonOptions(), OpenProtocolOptions(), DebeziumOptions()]
Change = tuple[int, TableDef, Row | None, Row | None]


class Tables:
    """A base with the two tables."""

    def find(self, db: str, table: str) -> TableDef | None:
        return {("test", "keyed"): KEYED, ("test", "keyless"): KEYLESS}.get((db, table))


def rows(*changes: Change) -> pa.RecordBatch:
    """Rows of `mutation`: commit_ts, table, row before, row after; one transaction each."""
    images = pa.map_(pa.string(), pa.string())
    columns: dict[str, list[Any]] = {}
    for commit_ts, table, before, after in changes:
        op = "insert" if before is None else "delete" if after is None else "update"
        own = {"id"} if table is KEYED else {"id", "v"}
        moved = bool(before and after and any(before[name] != after[name] for name in own))
        row = {"commit_ts": commit_ts, "start_ts": commit_ts - 1, "seq": 0, "db": "test", "table": table.name,
               "op": op, "new_key": "moved" if moved else None, "before": before and list(before.items()),
               "after": after and list(after.items())}  # fmt: skip
        for name, value in row.items():
            columns.setdefault(name, []).append(value)
    kinds = {"commit_ts": pa.int64(), "start_ts": pa.int64(), "seq": pa.int32(), "before": images, "after": images}
    arrays = {name: pa.array(values, kinds.get(name, pa.string())) for name, values in columns.items()}
    return pa.RecordBatch.from_pydict(arrays)


def messages(options: Options, *changes: Change, partition: str = "index-value") -> list[dict[str, Any]]:
    topics = Topics([Dispatcher(("*.*",), "{schema}.{table}", partition)], shared=True)
    definitions = WindowDefinitions(Tables(), ())
    encoder = MessageEncoder(definitions, Segments(0, 1000, ()), topics, format_of(options))
    found: list[dict[str, Any]] = encoder.encode(rows(*changes)).to_pylist()
    places = [tuple(message[name] for name in ORDER) for message in found]
    assert places == sorted(places)
    return found


def history() -> list[Change]:
    one: Row = {"id": "1", "v": "a"}
    two, moved = {"id": "1", "v": None}, {"id": "7", "v": "b"}
    return [
        (10, KEYED, None, one),
        (20, KEYED, one, two),
        (30, KEYED, None, {"id": "2", "v": "x"}),
        (40, KEYED, two, moved),
        (50, KEYED, moved, None),
    ]


# S2-45, S2-48, U-27
@pytest.mark.parametrize("options", SPLITTING, ids=lambda options: type(options).__name__)
def test_all_changes_of_a_row_have_one_partition_number(options: Options) -> None:
    found = messages(options, *history())
    assert [(one["commit_ts"], one["part"], one["op"]) for one in found] == [
        (10, 1, "c"), (20, 1, "u"), (30, 1, "c"), (40, 0, "d"), (40, 1, "c"), (50, 0, "d"),
    ]  # fmt: skip
    first, same, other, gone, came, last = (one["hash"] for one in found)
    assert first == same == gone
    assert came == last
    assert len({first, other, came}) == 3


# U-27
@pytest.mark.parametrize(
    "options",
    [CanalJsonOptions(raw_updates=True), OpenProtocolOptions(raw_updates=True), DebeziumOptions(raw_updates=True)],
    ids=lambda options: type(options).__name__,
)
def test_raw_update_goes_to_the_new_keys_partition(options: Options) -> None:
    found = messages(options, *history())
    assert [one["op"] for one in found] == ["c", "u", "c", "u", "d"]
    assert found[3]["hash"] == found[4]["hash"] != found[0]["hash"]


# S2-45
def test_other_partition_rules_and_keyless_tables() -> None:
    a: Row = {"id": "1", "v": "a"}
    keyless: list[Change] = [(10, KEYLESS, None, a), (20, KEYLESS, a, {"id": "1", "v": "b"}), (30, KEYED, None, a)]
    found = messages(CanalJsonOptions(), *keyless)
    assert [one["op"] for one in found] == ["c", "d", "c", "c"]
    assert len({one["hash"] for one in found[:3]}) == 1
    for rule in ("table", "default"):
        numbers = [one["hash"] for one in messages(CanalJsonOptions(), *history(), partition=rule)]
        assert len(set(numbers)) == 1
    stamps = [one["hash"] for one in messages(CanalJsonOptions(), *history(), partition="ts")]
    assert stamps == [10, 20, 30, 40, 40, 50]
    assert {one["hash"] for one in messages(SlaveBinlogOptions(), *history())} == {0}


def test_watermark_follows_every_change_of_its_window_in_each_topic() -> None:
    own = format_of(OpenProtocolOptions())
    found = encode_watermarks(own, ["b", "a", "b"], 50).to_pylist()
    assert [(one["topic"], one["hash"], one["op"]) for one in found] == [
        ("a", None, "watermark"),
        ("b", None, "watermark"),
    ]
    last = messages(OpenProtocolOptions(), *history())[-1]
    places = [tuple(one[name] for name in ORDER) for one in (last, *found)]
    assert places == sorted(set(places))
    assert encode_watermarks(format_of(AvroOptions()), ["a"], 50).num_rows == 0


def test_rows_too_large_for_one_column_are_encoded_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    own = CanalJsonOptions()
    changes: list[Change] = [(10 + n, KEYED, None, {"id": str(n), "v": '"' * 40}) for n in range(5)]
    whole = messages(own, *changes)
    monkeypatch.setattr(arrowcolumns, "MOST_BYTES", 170)
    assert messages(own, *changes) == whole
    monkeypatch.setattr(arrowcolumns, "MOST_BYTES", 70)
    with pytest.raises(pa.ArrowCapacityError):
        messages(own, *changes)


def test_ddl_precedes_rows_that_ran_ahead_of_it() -> None:
    sides = DdlSide((), (KEYED, KEYLESS)), DdlSide((), (KEYED, KEYLESS))
    ddl = LandedDdl(20, 15, 12, 1, 7, 5, "test", "keyed", "q", "ALTER", "apply", "", *sides)
    skipped = replace(ddl, decision="skip")
    topics = Topics([], default="{table}", shared=True)
    own = format_of(CanalJsonOptions())
    found = encode_ddls(own, topics, lambda _db, table: table != "other", [skipped, ddl, ddl]).to_pylist()
    assert [(one["commit_ts"], one["start_ts"], one["seq"], one["topic"], one["hash"]) for one in found] == [
        (15, 0, number, topic, 0) for number, topic in enumerate(["keyed", "keyless"] * 2)
    ]
    assert count_unsent(own, topics, lambda _db, table: table != "other", [skipped, ddl, ddl]) == 1
    assert encode_ddls(own, topics, lambda _db, _table: False, [ddl]).num_rows == 0
    assert encode_ddls(format_of(AvroOptions()), topics, lambda _db, _table: True, [ddl]).num_rows == 0
    whole = replace(ddl, table="", before=DdlSide((), ()), after=DdlSide((), ()))
    [one] = encode_ddls(
        own, Topics([], default="all", shared=True), lambda db, _table: db == "test", [whole]
    ).to_pylist()
    assert one["topic"] == "all"
