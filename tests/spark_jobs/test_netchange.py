"""Net changes derived by tasks: any parts, in any order, give the rows that the reference gives."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from support.changerows import Drawn, comparable_rows, mutation_rows
from support.engines import HostileEngine
from support.examples import seeds

from binlake.changes.net import RowEvent
from binlake.changes.net.columns import NET
from binlake.changes.net.origins import find_moves, find_origins
from binlake.ddl.definitions import Cell
from binlake.errors import SchemaError
from binlake.lake.paths import LakePaths
from binlake.spark_jobs.engine.engine import Engine, LocalEngine
from binlake.spark_jobs.engine.rows import MemoryRows, Rows
from binlake.spark_jobs.shared import netchange
from binlake.spark_jobs.shared.netchange import ReduceRows, WindowNetChange, find_key_arrivals, find_row_origins

ALONE = [Cell("d", "t", 0, 1, 10, "primary", ("a",), (None,))]


def cut(rows: pa.Table, draw: Random) -> list[Rows]:
    """`rows` in any order, as parts of any size."""
    order = draw.sample(range(rows.num_rows), rows.num_rows)
    rows, parts = rows.take(pa.array(order, pa.int64())), list[Rows]()
    while rows.num_rows:
        size = draw.randint(1, rows.num_rows)
        parts.append(MemoryRows(rows.slice(0, size)))
        rows = rows.slice(size)
    return parts


def compute(engine: Engine, folder: Path, net: WindowNetChange) -> pa.Table:
    """NET of the whole window."""
    with engine.open_store(LakePaths(str(folder)), "test") as store:
        reduce, groups = net.prepare(engine, store)
        tables = [table for _, runs in groups for table in reduce(runs)]
    return pa.concat_tables([NET.empty_table(), *tables])


@pytest.mark.parametrize("routed", [False, True])
@pytest.mark.parametrize("seed", seeds(4))
def test_net_changes_of_any_parts_and_groups_equal_the_reference(seed: int, tmp_path: Path, *, routed: bool) -> None:
    # R-17 (copies), R-18 (identity of the segment), invariant 6
    draw = Random(seed)
    drawn = Drawn(draw, tables=4, events=draw.choice((20, 120)))
    for engine in (LocalEngine(), LocalEngine(held_bytes=0), HostileEngine(draw)):
        net = WindowNetChange(cut(drawn.rows(), draw), drawn.cells(), draw.choice((1, 2, 16)), routed)
        assert comparable_rows(compute(engine, tmp_path, net)) == drawn.expected()
    assert not list((tmp_path / "_staging").glob("*"))


def test_origins_of_moved_keys_do_not_depend_on_the_parts() -> None:
    draw = Random(7)
    drawn = Drawn(draw, tables=12, events=600)
    cells = [cell for cell in drawn.cells() if cell.identity != "row"]
    [batch] = drawn.rows().combine_chunks().to_batches()
    expected = find_origins(find_moves(batch, cells))
    assert expected.num_rows > 5
    found = find_row_origins(HostileEngine(draw), cut(drawn.rows(), draw), cells)
    assert sorted(map(str, found.to_pylist())) == sorted(map(str, expected.to_pylist()))


def test_arrivals_of_keys_do_not_depend_on_the_parts(tmp_path: Path) -> None:  # S4-03
    draw = Random(8)
    drawn = Drawn(draw, tables=12, events=600)
    rows = drawn.rows()
    sources = pa.array([draw.choice(("s1", "s2")) for _ in range(rows.num_rows)])
    ids = pa.array([draw.randrange(2) for _ in range(rows.num_rows)], pa.int64())
    rows = rows.set_column(rows.schema.get_field_index("source_table"), "source_table", sources)
    rows = rows.set_column(rows.schema.get_field_index("table_id"), "table_id", ids)
    found = []
    for engine, parts, groups in ((LocalEngine(), [MemoryRows(rows)], 1), (HostileEngine(draw), cut(rows, draw), 8)):
        with engine.open_store(LakePaths(str(tmp_path)), "test") as store:
            histories, batches = find_key_arrivals(engine, store, parts, drawn.cells(), groups)
            found.append((histories, sorted(str(row) for batch in batches for row in batch.to_pylist())))
    assert found[0] == found[1]
    assert {"'other_source': None" in row for row in found[0][1]} == {True, False}


def test_a_task_sends_one_run_per_key_instead_of_all_changes() -> None:  # U-22
    changes = [("t", RowEvent(5, 4, seq, "update", {"a": "1"}, {"a": "1"})) for seq in range(1000)]
    [(sent, groups)] = ReduceRows(tuple(ALONE), 4, routed=False)(MemoryRows(mutation_rows(changes))).pieces
    assert [row["mutations"] for row in sent.to_pylist()] == [1000]
    assert len(groups) == 1


def test_errors_of_tasks_name_the_key_and_its_place(tmp_path: Path) -> None:  # S4-09
    def net(changes: Sequence[Any], **how: Any) -> pa.Table:
        parts = [MemoryRows(mutation_rows([change])) for change in changes]
        return compute(HostileEngine(Random(1)), tmp_path, WindowNetChange(parts, ALONE, 2, **how))

    with pytest.raises(SchemaError, match=r"a key column is NULL or absent \[table=d.t commit_ts=5\]"):
        net([("t", RowEvent(5, 4, 0, "insert", None, {"a": None}))])
    twice = [("t", RowEvent(ts, 3, 0, "insert", None, {"a": "1"})) for ts in (6, 5)]
    with pytest.raises(SchemaError, match="key=#43de3a417d75 first_commit_ts=5 last_commit_ts=6") as caught:
        net(twice, strict=frozenset(ALONE))
    assert caught.value.hint.startswith("the source logged")
    assert net(twice).num_rows == 1


def test_the_number_of_groups_follows_from_rows_and_bytes() -> None:
    assert [netchange.count_groups(rows, 0) for rows in (0, 1, 100_000, 100_001, 200_000, 900_000)] == [
        1,
        1,
        1,
        2,
        2,
        16,
    ]
    assert netchange.count_groups(1, 33 << 20) == 2
    assert netchange.count_groups(1 << 40, 0) == netchange.MOST_GROUPS


def test_neighbouring_keys_are_in_one_group() -> None:
    keys = pa.array([f'["{number}"]' for number in range(5000, 5100)])
    assert len(set(netchange.find_groups(keys, 64).tolist())) == 1
    apart = pa.array([f'["{number}00"]' for number in range(1000)])
    assert len(set(netchange.find_groups(apart, 64).tolist())) == 64
