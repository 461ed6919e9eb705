"""The net change by DataFrame operations equals the pure reference on random histories, segment by segment."""

from __future__ import annotations

import itertools
import json
import random
from datetime import date
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from binlake.lake.tables import MUTATION
from binlake.rowchange import RowEvent, net_changes
from binlake.schema import Identity
from binlake.window.definitions import Cell
from spark_jobs import netchange
from spark_jobs.failures import translate

pytestmark = pytest.mark.spark

Event = tuple[str, RowEvent]
ODD = [None, "", "a", "A", '"', "\\", "\n", "\x1f", "é", "日", "null", ",", "0"]
STARTS = (300, 600)


def _history(rng: random.Random, table: str, identities: list[Identity], events: int) -> list[Event]:
    """A legal history: keyed rows are unique by the identity of each segment, keyless ones may repeat."""
    rows: list[dict[str, str | None]] = []
    found: list[Event] = []
    for step in range(events):
        commit_ts = 1 + step * 900 // events
        identity = identities[sum(start <= commit_ts for start in STARTS)]
        before = rng.choice(rows) if rows and rng.random() < 0.65 else None
        after = None if before is not None and rng.random() < 0.4 else _row(rng, before, identity)
        if after is not None and identity.kind != "row" and _clash(rows, before, after, identity):
            continue
        if before is not None:
            rows.remove(before)
        if after is not None:
            rows.append(after)
        op: Any = "insert" if before is None else "delete" if after is None else "update"
        found.append((table, RowEvent(commit_ts, commit_ts - 1, step, op, before, after)))
    return found


def _row(rng: random.Random, base: dict[str, str | None] | None, identity: Identity) -> dict[str, str | None]:
    row = {"a": rng.choice(ODD[1:]), "b": rng.choice(ODD[1:]), "c": rng.choice(ODD)}
    keep = base is not None and rng.random() < 0.5
    return {**row, **{name: base[name] for name in identity.columns if name != "c"}} if keep and base else row


def _clash(rows: list[Any], before: Any, after: Any, identity: Identity) -> bool:
    key = [after[name] for name in identity.columns]
    return any(row is not before and [row[name] for name in identity.columns] == key for row in rows)


def _frame(spark: SparkSession, events: list[Event]) -> Any:
    rows = [
        (e.commit_ts, e.start_ts, e.seq, date(2026, 1, 1), 1, "d", t, "d", t, 1, e.op, "-", None, e.before, e.after)
        for t, e in events
    ]
    return spark.createDataFrame(rows, MUTATION.schema())


def _cells(table: str, identities: list[Identity]) -> list[Cell]:
    edges = [1, *STARTS, 1000]
    return [
        Cell("d", table, n, edges[n], edges[n + 1], i.kind, i.columns, (None,) * len(i.columns))
        for n, i in enumerate(identities)
    ]


KEYS = [
    Identity("primary", ("a",)),
    Identity("unique", ("b", "a")),
    Identity("row", ("a", "b", "c")),
    Identity("primary", ("b",)),
]


def test_net_changes_equal_the_reference_on_random_histories(spark: SparkSession) -> None:
    # R-17 (copies), R-18 (identity of the segment), invariant 6
    seed = random.randrange(1 << 32)
    rng = random.Random(seed)
    tables = {f"t{n}": [rng.choice(KEYS) for _ in range(3)] for n in range(40)}
    events = [e for table, keys in tables.items() for e in _history(rng, table, keys, 120)]
    rng.shuffle(events)
    cells = [cell for table, keys in tables.items() for cell in _cells(table, keys)]

    found = netchange.net_changes(spark, _frame(spark, events), cells).collect()

    got = {_comparable(row.asDict()) for row in found}
    assert len(got) == len(found), f"seed {seed}"
    assert got == _expected(tables, events), f"seed {seed}"


def _expected(tables: dict[str, list[Identity]], events: list[Event]) -> set[Any]:
    wanted = set()
    for table, identities in tables.items():
        for segment, identity in enumerate(identities):
            own = [e for t, e in events if t == table and sum(s <= e.commit_ts for s in STARTS) == segment]
            for change in net_changes(own, identity):
                wanted.add(_comparable({**vars(change), "db": "d", "table": table, "segment": segment}))
    return wanted


def _comparable(change: dict[str, Any]) -> Any:
    images = [None if change[name] is None else tuple(sorted(change[name].items())) for name in ("before", "after")]
    # Keys are compared as values: two writers of JSON may escape control characters in their own ways.
    plain = ("segment", "db", "table", "identity", "op", "copies", "first_commit_ts", "last_commit_ts", "mutations")
    return (*(change[name] for name in plain), tuple(json.loads(change["key"])), *images)


CAME, STAYED, WENT = ("insert", False, True), ("update", True, True), ("delete", True, False)
PAIRS = list(itertools.product([CAME, STAYED, WENT], repeat=2))
ALONE = [Cell("d", "t", 0, 1, 10, "primary", ("a",), (None,))]


def _pair(key: str, *changes: tuple[Any, bool, bool]) -> list[Event]:
    image = {"a": key}
    return [
        ("t", RowEvent(ts, 3, int(key), op, image if old else None, image if new else None))
        for ts, (op, old, new) in enumerate(changes, 5)
    ]


def test_pairs_that_a_table_goes_through_and_moves_of_keys_are_never_accused(spark: SparkSession) -> None:  # S4-09
    events = [e for n, pair in enumerate(PAIRS) if pair[0][2] == pair[1][1] for e in _pair(str(n), *pair)]
    events += [
        ("t", RowEvent(5, 3, 20, "insert", None, {"a": "20"})),
        ("t", RowEvent(5, 3, 21, "update", {"a": "20"}, {"a": "21"})),
        ("t", RowEvent(6, 3, 21, "delete", {"a": "21"}, None)),
    ]
    found = netchange.net_changes(spark, _frame(spark, events), ALONE, strict=True).collect()
    assert sorted(row["op"] for row in found) == ["delete"] * 4 + ["replace"] * 3


@pytest.mark.parametrize(("first", "second"), [pair for pair in PAIRS if pair[0][2] != pair[1][1]])
def test_a_pair_that_no_table_goes_through_stops_with_key_and_commit_ts(
    spark: SparkSession, first: tuple[Any, bool, bool], second: tuple[Any, bool, bool]
) -> None:  # S4-09
    frame = _frame(spark, [*_pair("1", first, second), *_pair("2", CAME, STAYED)])
    with pytest.raises(PySparkException) as caught:
        netchange.net_changes(spark, frame, ALONE, strict=True).collect()
    ours = translate(caught.value)
    assert type(ours).__name__ == "SchemaError"
    assert "[table=d.t key=#43de3a417d75 first_commit_ts=5 last_commit_ts=6]" in str(ours)
    assert ours.hint.startswith("the source logged")


def test_one_key_changed_a_million_times_is_one_change(spark: SparkSession) -> None:
    many = spark.range(1_000_000).select(
        F.lit(5).cast("bigint").alias("commit_ts"), F.lit(4).cast("bigint").alias("start_ts"),
        F.col("id").cast("int").alias("seq"), F.lit("d").alias("db"), F.lit("t").alias("table"),
        F.expr("map('a', '1', 'n', cast(id - 1 as string))").alias("before"),
        F.expr("map('a', '1', 'n', cast(id as string))").alias("after"),
    )  # fmt: skip
    cells = [Cell("d", "t", 0, 1, 10, "primary", ("a",), (None,))]
    [row] = netchange.net_changes(spark, many, cells).collect()
    assert (row["op"], row["after"]["n"], row["mutations"]) == ("replace", "999999", 1_000_000)


def test_a_deleted_row_older_than_its_column_is_the_row_with_the_origin_default(spark: SparkSession) -> None:
    # a keyless row written before ADD COLUMN lacks it in its delete, while its insert images are filled.
    events: list[Event] = [
        ("t", RowEvent(5, 4, 0, "insert", None, {"a": "1", "z": "7"})),
        ("t", RowEvent(6, 4, 0, "delete", {"a": "1"}, None)),
        ("t", RowEvent(7, 4, 0, "delete", {"a": "2"}, None)),
    ]
    cells = [Cell("d", "t", 0, 1, 10, "row", ("a", "z"), (None, "7"))]
    [row] = netchange.net_changes(spark, _frame(spark, events), cells).collect()
    assert (row["op"], row["before"], row["copies"]) == ("delete", {"a": "2", "z": "7"}, 1)


@pytest.mark.parametrize("compiled", [netchange.COMPILED_SHAPES, 0])
def test_a_key_column_younger_than_its_row_is_in_the_image_too(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, compiled: int
) -> None:
    # renderer and mirror find the row of a DELETE by its image.
    monkeypatch.setattr(netchange, "COMPILED_SHAPES", compiled)
    events: list[Event] = [
        ("t", RowEvent(5, 4, 0, "delete", {"a": "1", "v": "x"}, None)),
        ("t", RowEvent(6, 4, 0, "update", {"a": "2"}, {"a": "2", "z": "8"})),
    ]
    identity = Identity("primary", ("a", "z"))
    cells = [Cell("d", "t", 0, 1, 10, "primary", identity.columns, (None, "7"))]
    found = netchange.net_changes(spark, _frame(spark, events), cells).collect()
    assert {row["key"]: row["before"] or row["after"] for row in found} == {
        '["1","7"]': {"a": "1", "v": "x", "z": "7"},
        '["2","7"]': {"a": "2", "z": "7"},
        '["2","8"]': {"a": "2", "z": "8"},
    }
    reference = net_changes([event for _, event in events], identity, {"z": "7"})
    assert {_comparable(row.asDict()) for row in found} == {
        _comparable({**vars(change), "db": "d", "table": "t", "segment": 0}) for change in reference
    }


def test_a_null_in_a_key_stops_with_the_place(spark: SparkSession) -> None:
    events: list[Event] = [("t", RowEvent(5, 4, 0, "insert", None, {"a": None}))]
    cells = [Cell("d", "t", 0, 1, 10, "primary", ("a",), (None,))]
    with pytest.raises(PySparkException) as caught:
        netchange.net_changes(spark, _frame(spark, events), cells).collect()
    ours = translate(caught.value)
    assert type(ours).__name__ == "SchemaError"
    assert "d.t" in str(ours)
    assert "commit_ts=5" in str(ours)
