"""The net change on columns equals the plain reference on random rows, reduced at once or in pieces (invariant 6)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import cast

import pyarrow as pa
import pytest
from support.changerows import ODD, Comparable, Drawn, comparable_rows, mutation_rows

from binlake.changes.net import RowEvent, encode_row_key
from binlake.changes.net.columns import NET, combine_into_batch, compute_net_changes, compute_net_of_runs
from binlake.changes.net.events import read_key_events, split_rows_by_key_form
from binlake.changes.net.runs import reduce_runs, runs_from_table, runs_to_table, start_runs
from binlake.ddl.definitions import Cell
from binlake.errors import Permanent, SchemaError
from binlake.rows.codec.assemble import format_key_texts

DRAWS = 90


@pytest.mark.long
@pytest.mark.parametrize("first", range(0, DRAWS, 30))
def test_net_changes_equal_the_reference_on_random_rows(first: int) -> None:
    # R-17 (copies, rows older than a column), R-18 (identity of the segment), DESIGN 3.6
    for seed in range(first, first + 30):
        drawn = Drawn(Random(f"net {seed}"))
        assert comparable_rows(compute_net_changes(drawn.rows(), drawn.cells())) == drawn.expected(), f"seed {seed}"


@pytest.mark.long
def test_runs_reduced_in_any_pieces_and_order_give_the_same() -> None:
    for seed in range(DRAWS // 2):
        drawn = Drawn(Random(f"runs {seed}"))
        rows, found = combine_into_batch(drawn.rows()), []
        share = [drawn.random.randrange(3) for _ in range(rows.num_rows)]
        shares = [rows.filter(pa.array([own == n for own in share])) for n in (2, 0, 1)]
        for cell in drawn.cells():
            if tables := [table for rows in shares for table in _runs(rows, cell)]:
                found.append(compute_net_of_runs(reduce_runs(runs_from_table(pa.concat_tables(tables))), [cell]))
        assert comparable_rows(pa.concat_tables(found)) == drawn.expected(), f"seed {seed}"


def _runs(rows: pa.RecordBatch, cell: Cell) -> list[pa.Table]:
    return [
        runs_to_table(reduce_runs(start_runs(read_key_events(found), found)))
        for found in split_rows_by_key_form(rows, [cell])
    ]


@pytest.mark.long
def test_strict_reports_the_same_contradictions_as_the_reference() -> None:  # S4-09
    refused = 0
    for seed in range(DRAWS):
        drawn = Drawn(Random(f"strict {seed}"), tables=1, events=12)
        cells = drawn.cells()
        wanted = _or_message(partial(drawn.expected, cells))
        refused += isinstance(wanted, str)
        assert _or_message(partial(_net, drawn.rows(), cells)) == wanted, f"seed {seed}"
        legal = Drawn(Random(f"legal {seed}"), legal=True)
        assert _net(legal.rows(), legal.cells()) == legal.expected(), f"seed {seed}"
    assert 10 < refused < DRAWS - 10


def _net(rows: pa.Table, strict: list[Cell]) -> set[Comparable]:
    return comparable_rows(compute_net_changes(rows, strict, strict=strict))


def _or_message(make: Callable[[], set[Comparable]]) -> set[Comparable] | str:
    try:
        return make()
    except SchemaError as error:
        return error.message + error.hint


def test_key_texts_equal_row_keys() -> None:
    values = [None, *ODD, *map(chr, range(0x20))]
    pairs = [(a, b) for a in values for b in values]
    columns = [pa.array(column, pa.string()) for column in zip(*pairs, strict=True)]
    assert format_key_texts(columns).to_pylist() == [encode_row_key({"a": a, "b": b}, ("a", "b")) for a, b in pairs]
    assert format_key_texts([columns[0].slice(3, 5)]).to_pylist() == [
        encode_row_key({"a": a}, ("a",)) for a, _ in pairs[3:8]
    ]


ALONE = Cell("d", "t", 0, 1, 10, "primary", ("a",), (None,))


def test_rows_outside_cells_and_empty_input_give_no_changes() -> None:
    assert compute_net_changes(mutation_rows([]), [ALONE]).schema == NET
    events = [
        ("u", RowEvent(5, 4, 0, "insert", None, {"a": "1"})),
        ("t", RowEvent(10, 4, 0, "delete", {"a": "1"}, None)),
    ]
    assert compute_net_changes(mutation_rows(events), [ALONE]).num_rows == 0


@pytest.mark.parametrize("image", [{"a": None}, {"b": "1"}])
def test_null_or_absent_key_column_error_names_the_position(image: dict[str, str | None]) -> None:
    events = [("t", RowEvent(4, 3, 0, "insert", None, {"a": "1"})), ("t", RowEvent(5, 4, 0, "insert", None, image))]
    with pytest.raises(SchemaError, match=r"a key column is NULL or absent \[table=d.t commit_ts=5\]"):
        compute_net_changes(mutation_rows(events), [ALONE])


def test_contradiction_error_names_table_key_and_commit_ts() -> None:  # S4-09
    twice = [("t", RowEvent(ts, 3, 0, "insert", None, {"a": "1"})) for ts in (6, 5)]
    with pytest.raises(SchemaError) as caught:
        compute_net_changes(mutation_rows(twice), [ALONE], strict=[ALONE])
    assert "[table=d.t key=#43de3a417d75 first_commit_ts=5 last_commit_ts=6]" in str(caught.value)
    assert caught.value.hint.startswith("the source logged")


@pytest.mark.parametrize(("second", "table_id", "refused"), [("s2", 2, True), ("s2", 1, False), ("s1", 2, False)])
def test_key_of_two_source_tables_is_refused_but_a_rename_is_not(second: str, table_id: int, refused: bool) -> None:
    # a renamed table keeps its id, a truncated one its name
    events = [("t", RowEvent(ts, 3, 0, "update", {"a": "1"}, {"a": "1"})) for ts in (5, 6)]
    rows = mutation_rows(events)
    for name, values in (("source_table", ["s1", second]), ("table_id", [1, table_id])):
        at = rows.schema.get_field_index(name)
        rows = rows.set_column(at, rows.schema.field(at), pa.array(values, rows.schema.field(at).type))
    assert compute_net_changes(rows, [ALONE]).num_rows == 1
    if not refused:
        assert compute_net_changes(rows, [ALONE], routed=True).num_rows == 1
        return
    with pytest.raises(SchemaError, match=r"\[table=d.t key=#\w+ sources=d.s1,d.s2 commit_ts=6\]"):
        compute_net_changes(rows, [ALONE], routed=True)


def test_rows_that_exceed_one_batch_are_refused() -> None:
    batch = pa.record_batch({"key": ["a"]})
    # Arrow returns several chunks like this if a column has more than 2 GiB.
    rows = SimpleNamespace(num_rows=2, nbytes=3 << 30, combine_chunks=lambda: pa.Table.from_batches([batch, batch]))
    with pytest.raises(Permanent, match=r"too large for one process.*window\.driver-bytes"):
        combine_into_batch(cast("pa.Table", rows))
