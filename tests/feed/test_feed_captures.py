"""The feed of every genuine capture, replayed by an independent consumer, reproduces the tables.

Avro messages are kept as log compaction keeps them and decoded with fastavro; the messages of the other protocols are
replayed one by one.

Only tables whose rows no DDL has changed since their creation are compared, because Avro carries no DDL (S2-36). The
capture `zones_rearranged` is left out: merge refuses it, so no sink can process it.
"""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import fastavro
import numpy as np
import pyarrow as pa
import pytest
from support.canal import decode_canal
from support.csvrows import canonical_text, split_csv
from support.examples import spread
from support.feedrows import Row, columns_of
from support.openprotocol import decode_open, row_of_open
from support.pbbinlog import rows_of_event
from support.slavebinlog import row_of_slave

from binlake.compare import build_canonical_converter, decode_captured_value
from binlake.config.protocols import (
    AvroOptions,
    CanalJsonOptions,
    CsvOptions,
    OpenProtocolOptions,
    Options,
    PbOptions,
    SlaveBinlogOptions,
)
from binlake.ddl.ddls import build_window_schemas, plan_ddls
from binlake.ddl.definitions import Segments, WindowDefinitions
from binlake.feed.avroschema import build_legal_name
from binlake.feed.messages import ORDER, MessageEncoder, compute_fingerprint
from binlake.feed.protocols import format_of
from binlake.mirror.plan import MirrorEffect, derive_effects
from binlake.rows.codec import MutationBatch
from binlake.rows.codec.datum import format_double, format_float
from binlake.rows.schema import ColumnInfo, SchemaState, TableDef
from binlake.rows.schema import mysqltypes as t
from binlake.rules.topics import Dispatcher, Topics
from binlake.testkit.captures import read_expected_states
from binlake.testkit.captures.capture import Capture, StateAt
from binlake.wire import pb_binlog_pb2 as binlogs
from binlake.wire import slave_binlog_pb2 as pb
from deploy.local.commitlog import RULES, read_log

pytestmark = pytest.mark.long

CAPTURES = Path(__file__).parents[1] / "captures"
TOPICS = Topics([Dispatcher(("*.*",), "{schema}.{table}")])
TEXTS = AvroOptions(decimals="string", unsigned_bigints="string", extension=True)
Name = tuple[str, str]
Columns = dict[str, ColumnInfo]


class Change(NamedTuple):
    """The row before a change, and the row after it."""

    name: Name
    gone: Row | None
    came: Row | None


Decode = Callable[[dict[str, Any], dict[Name, Columns]], Iterator[Change]]
"""The changes of a message, with the columns by table."""


class Consumer(Protocol):
    """A reader of a feed's messages. `rows_changed_by_ddl`: tables whose changes the feed does not fully describe."""

    messages: int
    rows_changed_by_ddl: set[Name]

    def learn(self, schema: str) -> None:
        """Learn a schema of the registry."""

    def read(self, messages: pa.Table, columns: dict[Name, Columns]) -> None:
        """Apply the messages; `columns`: those that each table has or had."""

    def rows(self, name: Name, table: TableDef) -> list[dict[str, Any]]:
        """The table's rows, with values in the form of `raw`."""


class AvroConsumer:
    """The state of a reader of the topics: the last value of each key of a topic, decoded by its schema."""

    def __init__(self) -> None:
        self.schemas: dict[str, Any] = {}
        self.topics: dict[str, dict[str, dict[str, Any]]] = {}
        self.messages = 0
        self.rows_changed_by_ddl: set[Name] = set()

    def learn(self, schema: str) -> None:
        self.schemas.setdefault(compute_fingerprint(schema), fastavro.parse_schema(json.loads(schema)))

    def read(self, messages: pa.Table, _columns: dict[Name, Columns]) -> None:
        for message in messages.to_pylist():
            self.messages += 1
            rows = self.topics.setdefault(message["topic"], {})
            key = json.dumps(self._decode(message["key_schema"], message["key"]), default=repr)
            exact = (message["db"], message["table"]) not in self.rows_changed_by_ddl
            if message["value"] is None:
                assert message["op"] == "d"
                assert rows.pop(key, None) is not None or not exact, message
                continue
            value = self._decode(message["value_schema"], message["value"])
            assert (value["_tidb_op"], value["_tidb_commit_ts"]) == (message["op"], message["commit_ts"])
            assert (message["op"] == "u") == (key in rows) or not exact, message
            rows[key] = value

    def rows(self, name: Name, table: TableDef) -> list[dict[str, Any]]:
        own = self.topics.get(TOPICS.find_topic(*name), {}).values()
        return [{column.name: row[build_legal_name(column.name)] for column in table.row_columns} for row in own]

    def _decode(self, schema: str, body: bytes) -> Any:
        stream = io.BytesIO(body)
        value = fastavro.schemaless_reader(stream, self.schemas[schema], None)
        assert not stream.read()
        return value


class ReplayConsumer:
    """The state of a reader that applies each message in order; it needs no key."""

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self.tables: dict[Name, Counter[Any]] = {}
        self.messages = 0
        self.rows_changed_by_ddl: set[Name] = set()

    def learn(self, schema: str) -> None:
        raise AssertionError(schema)

    def read(self, messages: pa.Table, columns: dict[Name, Columns]) -> None:
        for message in messages.to_pylist():
            self.messages += 1
            for change in self._decode(message, columns):
                rows = self.tables.setdefault(change.name, Counter())
                if change.gone is not None:
                    row = tuple(sorted(change.gone.items()))
                    assert rows[row] > 0 or change.name in self.rows_changed_by_ddl, message
                    rows[row] -= 1
                if change.came is not None:
                    rows[tuple(sorted(change.came.items()))] += 1

    def rows(self, name: Name, table: TableDef) -> list[dict[str, Any]]:
        binary = {column.name for column in table.row_columns if column.is_binary}
        return [
            {column: bytes.fromhex(text) if column in binary and text is not None else text for column, text in row}
            for row in self.tables.get(name, Counter()).elements()
        ]


def changes_of_canal(message: dict[str, Any], columns: dict[Name, Columns]) -> Iterator[Change]:
    name = message["db"], message["table"]
    change = decode_canal(message["value"], columns[name])
    assert (change.name, change.commit_ts, message["key"]) == (name, message["commit_ts"], None)
    gone = change.data if change.type == "DELETE" else change.old
    yield Change(name, gone, None if change.type == "DELETE" else change.data)


def changes_of_open(message: dict[str, Any], columns: dict[Name, Columns]) -> Iterator[Change]:
    for key, value in decode_open(message["key"], message["value"]):
        name = key["scm"], key["tbl"]
        assert value is not None
        assert (key["ts"], key["t"]) == (message["commit_ts"], 1)
        rows = {side: row_of_open(row, columns[name]) for side, row in value.items()}
        yield Change(name, rows.get("p", rows.get("d")), rows.get("u"))


def changes_of_slave(message: dict[str, Any], columns: dict[Name, Columns]) -> Iterator[Change]:
    binlog = pb.Binlog.FromString(message["value"])
    assert binlog.commit_ts == message["commit_ts"]
    for table in binlog.dml_data.tables:
        name = table.schema_name, table.table_name
        for mutation in table.mutations:
            row = row_of_slave(table, mutation.row, columns[name])
            old = row_of_slave(table, mutation.change_row, columns[name]) if mutation.HasField("change_row") else None
            gone = mutation.type == pb.Delete
            yield Change(name, row if gone else old, None if gone else row)


def changes_of_pb(message: dict[str, Any], columns: dict[Name, Columns]) -> Iterator[Change]:
    binlog = binlogs.Binlog.FromString(message["value"])
    assert binlog.commit_ts == message["commit_ts"]
    for event in binlog.dml_data.events:
        name = event.schema_name, event.table_name
        yield Change(name, *rows_of_event(event, columns[name]))


def changes_of_csv(message: dict[str, Any], columns: dict[Name, Columns]) -> Iterator[Change]:
    gone: Row | None = None
    for op, table, db, commit_ts, is_update, *values in split_csv(message["value"].decode()):
        own = columns[db or "", table or ""]
        assert (db, table, int(commit_ts or 0)) == (message["db"], message["table"], message["commit_ts"])
        # A line has no column names; after a DDL they are unknown here, so such a table is not compared.
        if len(own) != len(values):
            return
        row = {name: canonical_text(column, text) for (name, column), text in zip(own.items(), values, strict=True)}
        if op == "D" and is_update == "true":
            gone = row
        else:
            yield Change((db or "", table or ""), row if op == "D" else gone, None if op == "D" else row)


class Window(NamedTuple):
    """What a capture logged up to one of its recorded states, decoded once for all protocols."""

    state: StateAt
    definitions: WindowDefinitions
    segments: Segments
    rows: pa.RecordBatch
    effects: list[MirrorEffect]


@cache
def windows_of(name: str) -> list[Window]:
    """The windows of a capture, one for each recorded state."""
    capture = Capture(CAPTURES / name)
    log, lo, schema, windows = read_log(capture), 0, SchemaState(), []
    for state in read_expected_states(capture):
        hi = state.commit_ts
        logged = [ddl for ddl in log.ddls if lo < ddl.commit_ts <= hi]
        jobs = [(ts, job) for ts, job in log.jobs if lo < ts <= hi]
        ddls = plan_ddls(schema, logged, jobs, RULES, lo=lo)
        segments = Segments(lo, hi, tuple(ddl.since for ddl in ddls if ddl.opens_segment))
        schemas = build_window_schemas(schema, logged, jobs, lo)
        batch = MutationBatch(RULES.route, invalid_text=RULES.invalid_text, second_writes=RULES.second_writes)
        for commit_ts, start_ts, payload, _ in (row for row in log.rows if lo < row[0] <= hi):
            batch.add(payload, commit_ts, start_ts, schemas.find_schema_at(commit_ts))
        effects = [effect for ddl in ddls for effect in derive_effects(ddl)]
        windows.append(Window(state, WindowDefinitions(schema, ddls), segments, batch.take(), effects))
        lo, schema = hi, schema.fold(jobs)
    return windows


class Feed:
    """A log sent window by window to a consumer."""

    def __init__(self, options: Options, consumer: Consumer) -> None:
        self._options, self.consumer = options, consumer
        self.tables: dict[Name, TableDef] = {}
        self.columns: dict[Name, Columns] = {}

    def advance(self, window: Window) -> None:
        for effect in window.effects:
            name = effect.table.db, effect.table.name
            self.tables[name] = effect.table
            self.columns.setdefault(name, {}).update(columns_of(effect.table))
            if effect.kind != "create":
                self.consumer.rows_changed_by_ddl.add(name)
        self._send(window.definitions, window.segments, window.rows)

    def _send(self, definitions: WindowDefinitions, segments: Segments, rows: pa.RecordBatch) -> None:
        encoder = MessageEncoder(definitions, segments, TOPICS, format_of(self._options))
        if isinstance(self._options, AvroOptions):
            rows = rows.filter(pa.array(self._keyed(definitions, segments, rows), pa.bool_()))
        messages = encoder.encode(rows)
        order = [tuple(row.values()) for row in messages.select(list(ORDER)).to_pylist()]
        assert order == sorted(order)
        for schema in encoder.collect_schemas().values():
            self.consumer.learn(schema)
        self.consumer.read(messages, self.columns)

    def _keyed(self, definitions: WindowDefinitions, segments: Segments, rows: pa.RecordBatch) -> list[bool]:
        """For each row, whether the table has a key at the row's position."""
        places = rows.select(["db", "table", "commit_ts"]).to_pylist()
        bounds = [segments.find_bounds(segments.find_segment(place["commit_ts"])) for place in places]
        tables = [
            definitions.require_definition_within(p["db"], p["table"], *bound)
            for p, bound in zip(places, bounds, strict=True)
        ]
        return [table.find_identity().kind != "row" for table in tables]


def raw(column: ColumnInfo, value: Any) -> str | bytes | None:
    """The value as a client of the text protocol receives it."""
    if value is None or isinstance(value, str):
        return value
    if column.tp == t.BIT:
        return bytes(value).rjust((column.flen + 7) // 8, b"\0")
    if column.tp in (t.FLOAT, t.DOUBLE):
        return format_float(np.float32(value)) if column.tp == t.FLOAT else format_double(value)
    if column.tp == t.YEAR:
        return f"{value:04}"
    return bytes(value) if isinstance(value, bytes) else str(value)


def to_comparable(
    content: dict[str, Any], table: TableDef, rows: list[dict[str, Any]]
) -> tuple[Counter[Any], Counter[Any]]:
    """(recorded rows, the consumer's rows) in the form of `binlake.compare`, without virtual columns."""
    hidden = set(content.get("virtual") or ())
    rules = {
        name: (place, build_canonical_converter(kind))
        for place, (name, kind) in enumerate(zip(content["columns"], content["types"], strict=True))
        if name not in hidden
    }
    columns = {column.name: column for column in table.row_columns}
    found = Counter(tuple(rule(raw(columns[name], row[name])) for name, (_, rule) in rules.items()) for row in rows)
    wanted = Counter(
        tuple(rule(decode_captured_value(row[place])) for place, rule in rules.values()) for row in content["rows"]
    )
    return wanted, found


COUNTS = {"anomaly": (36, 44), "bank": (87, 87), "ddl": (35, 37), "ddl_late": (35, 37), "keys": (105, 115),
          "keys_oldcoll": (105, 115), "partition_gen": (36, 48), "shard": (47, 47), "shard_mixed": (47, 47),
          "sysbench_like": (4, 4), "txn": (12, 22), "types_all": (7, 8), "zones_unique": (1, 1)}  # fmt: skip
"""By capture: how many tables at how many times are compared with Avro, which needs a key, and with Canal-JSON."""
# The captures with most rows are for `make soak`; most others run with only one of the two protocols.
MOST_ROWS = ("bank", "sysbench_like", "txn")
LONG = {
    "avro": (*MOST_ROWS, "ddl_late", "shard_mixed", "keys_oldcoll"),
    "canal": (*MOST_ROWS, "ddl", "keys", "shard", "partition_gen"),
}


def names_for(protocol: str, least: int) -> list[Any]:
    """Names of this run's share of the captures; captures that are long for this protocol are left to `make soak`."""
    long = LONG[protocol]
    later = [pytest.param(name, marks=pytest.mark.soak) for name in COUNTS if name in long]
    return [*spread([name for name in COUNTS if name not in long], least), *later]


# S2-02, S2-13, S2-36, S2-48, R-18, X-16
@pytest.mark.parametrize("name", names_for("avro", least=4))
def test_compacted_topics_equal_the_tables(name: str) -> None:
    assert compare_with_capture(name, TEXTS, AvroConsumer()) >= COUNTS[name][0]


# S2-02, R-18
@pytest.mark.parametrize("name", names_for("canal", least=3))
def test_replayed_canal_messages_equal_the_tables(name: str) -> None:
    replay = ReplayConsumer(changes_of_canal)
    assert compare_with_capture(name, CanalJsonOptions(extension=True), replay) >= COUNTS[name][1]


# S2-02, R-18
@pytest.mark.parametrize("name", spread(["types_all", "anomaly", "keys"], least=1))
@pytest.mark.parametrize(
    ("options", "decode"),
    [
        (OpenProtocolOptions(), changes_of_open),
        (SlaveBinlogOptions(), changes_of_slave),
        (PbOptions(), changes_of_pb),
        (CsvOptions(commit_ts=True, old_value=True), changes_of_csv),
    ],
    ids=["open-protocol", "slave-binlog", "pb", "csv"],
)
def test_replayed_messages_of_other_protocols_equal_the_tables(name: str, options: Options, decode: Decode) -> None:
    assert compare_with_capture(name, options, ReplayConsumer(decode)) >= COUNTS[name][1]


def compare_with_capture(name: str, options: Options, consumer: Consumer) -> int:
    """The number of comparisons: tables times recorded states of the capture."""
    feed, compared = Feed(options, consumer), 0
    for window in windows_of(name):
        feed.advance(window)
        for content in window.state.contents:
            place = (content["schema"], content["name"])
            table = feed.tables.get(place)
            if table is None or place in consumer.rows_changed_by_ddl or content.get("absent"):
                continue
            if isinstance(options, AvroOptions) and table.find_identity().kind == "row":
                continue
            wanted, found = to_comparable(content, table, consumer.rows(place, table))
            assert found - wanted == wanted - found == Counter(), (window.state.step, place)
            compared += 1
    return compared
