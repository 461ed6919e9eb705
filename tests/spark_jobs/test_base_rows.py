"""Windows with only blocks of a full load: what is derived of the blocks equals what the general way derives."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from support.examples import seeds
from support.netchanges import TABLES, WINDOW, definitions

from binlake.changes.net.columns import NET, compute_net_changes
from binlake.changes.net.images import MAP
from binlake.common.lakecolumns import Change, Mutation
from binlake.ddl.definitions import Cell, SegmentTable
from binlake.rows.codec import MUTATION_SCHEMA
from binlake.spark_jobs.engine.rows import MemoryRows, Rows, read_table
from binlake.spark_jobs.shared.baserows import BaseBlock, find_base_blocks, fold_blocks
from binlake.spark_jobs.shared.netchange import NetRows, measure_sizes
from binlake.spark_jobs.shared.render import Renderer, render_blocks
from binlake.statements import BatchLimits, StatementBatch

TEXTS = [None, "", "it's", "ä😀\\", '"', "\0", "x" * 90]
CELLS = [
    Cell("d", name, segment, 100 * segment, 100 * segment + 100, identity.kind, identity.columns, filled)
    for segment in range(2)
    for name, identity in ((name, one.find_identity()) for name, one in TABLES.items())
    for filled in [(None,) * len(identity.columns)]
]


def build_rows(commit_ts: int, table: str, images: list[dict[str, str | None]], **others: Any) -> pa.Table:
    """The rows of one block."""
    values = {
        Mutation.COMMIT_TS: commit_ts,
        Mutation.START_TS: commit_ts - 1,
        Mutation.DB: "d",
        Mutation.TABLE: table,
        Mutation.SOURCE_DB: "s",
        Mutation.SOURCE_TABLE: table,
        Mutation.TABLE_ID: 7,
        Mutation.OP: "insert",
        **others,
    }
    rows = [{**values, Mutation.SEQ: seq, Mutation.AFTER: list(image.items())} for seq, image in enumerate(images)]
    return pa.Table.from_pylist([{**row, **others} for row in rows], schema=MUTATION_SCHEMA)


def draw_blocks(draw: Random) -> list[pa.Table]:
    numbers = iter(draw.sample(range(10_000), 400))
    return [
        build_rows(
            commit_ts,
            draw.choice(list(TABLES)),
            [{"id": str(next(numbers)), "text": draw.choice(TEXTS)} for _ in range(draw.randint(1, 30))],
        )
        for commit_ts in sorted(draw.sample(range(1, 199), 12))
    ]


def cut(blocks: list[pa.Table], draw: Random) -> list[Rows]:
    """The rows in files and batches of any size, in any order."""
    pieces = []
    for block in (block.take(pa.array(draw.sample(range(block.num_rows), block.num_rows))) for block in blocks):
        at = draw.randint(0, block.num_rows)
        pieces += [piece for piece in (block.slice(0, at), block.slice(at)) if piece.num_rows]
    draw.shuffle(pieces)
    at = draw.randint(1, len(pieces))
    return [MemoryRows(pa.concat_tables(own)) for own in (pieces[:at], pieces[at:]) if own]


def require_blocks(parts: list[Rows]) -> tuple[BaseBlock, ...]:
    found = find_base_blocks(parts, CELLS)
    assert found is not None
    return found


@pytest.mark.parametrize("seed", seeds(6))
def test_net_changes_and_statements_equal_those_of_the_general_way(seed: int) -> None:  # 6 R-17
    draw = Random(seed)
    blocks = draw_blocks(draw)
    net = NetRows.of_blocks(require_blocks(cut(blocks, draw)), CELLS)
    expected = compute_net_changes(pa.concat_tables(blocks), CELLS)
    assert net.places is not None
    found = pa.concat_tables([read_table([rows], NET) for _, rows in net.places])
    assert list_changes(found) == list_changes(expected)
    assert [place for place, _ in net.places] == sorted(measure_sizes(expected))
    assert (dict(net.sizes), net.fold.count) == (measure_sizes(expected), expected.num_rows)
    # Batches of one row, so that they can be compared.
    renderer = Renderer(WINDOW, definitions(), "mariadb", BatchLimits(rows=1), plain=False)
    whole = expected.append_column(Change.WINDOW, pa.repeat(WINDOW, expected.num_rows))
    assert list_texts(render_blocks(renderer, net.blocks)) == list_texts(renderer(0, whole))


def list_changes(net: pa.Table) -> list[str]:
    """The net changes without their keys, which blocks leave out."""
    return sorted(map(str, net.drop_columns([Change.KEY]).to_pylist()))


def list_texts(groups: Iterator[list[StatementBatch]]) -> list[tuple[object, ...]]:
    names = ("segment", "phase", "db", "table", "kind", "sql", "expect", "verify_sql", "rows")
    return sorted(tuple(str(getattr(batch, name)) for name in names) for batches in groups for batch in batches)


@pytest.mark.parametrize("seed", seeds(4))
def test_blocks_batches_and_digest_depend_on_the_rows_only(seed: int) -> None:  # R-16 R-62
    draw = Random(seed)
    blocks = draw_blocks(draw)
    renderer = Renderer(WINDOW, definitions(), "mariadb", BatchLimits(rows=7), plain=False)
    found = [require_blocks(cut(blocks, draw)) for _ in range(3)]
    assert len({fold_blocks(one) for one in found}) == 1
    texts = [[batch for batches in render_blocks(renderer, one) for batch in batches] for one in found]
    assert texts[0] == texts[1] == texts[2]
    places = [(batch.segment, batch.phase, batch.batch) for batch in texts[0]]
    assert len(set(places)) == len(places)


IMAGES: list[dict[str, str | None]] = [{"id": "1", "text": "ab"}, {"id": "2", "text": None}]


@pytest.mark.parametrize(
    "other",
    [
        build_rows(10, "a", [{"id": "1", "text": "ab"}, {"id": "2", "text": ""}]),
        build_rows(10, "a", [{"id": "1", "text": "a"}, {"id": "b2", "text": None}]),
        build_rows(10, "a", [{"id": "1a", "text": "b"}, {"id": "2", "text": None}]),
        build_rows(10, "a", [{"id": "2", "text": None}, {"id": "1", "text": "ab"}]),
        build_rows(10, "a", IMAGES[:1]),
        build_rows(10, "b", IMAGES),
        build_rows(110, "a", IMAGES),
        build_rows(11, "a", IMAGES),
        build_rows(10, "a", [{"id": image["id"], "other": image["text"]} for image in IMAGES]),
    ],
    ids=["null", "ends", "columns", "order", "fewer", "table", "segment", "moment", "names"],
)
def test_the_digest_shows_every_difference(other: pa.Table) -> None:
    one, another = (fold_blocks(require_blocks([MemoryRows(rows)])) for rows in (build_rows(10, "a", IMAGES), other))
    assert (one.total, one.xor) != (another.total, another.xor)


def test_the_same_rows_in_other_buffers_have_the_same_digest() -> None:
    rows = build_rows(10, "a", IMAGES)
    longer = build_rows(10, "a", [{"id": "0", "text": "before"}, *IMAGES])
    numbers = pa.array([0, 1], pa.int32())
    sliced = longer.slice(1).set_column(longer.schema.get_field_index(Mutation.SEQ), Mutation.SEQ, numbers)
    assert fold_blocks(require_blocks([MemoryRows(rows)])) == fold_blocks(require_blocks([MemoryRows(sliced)]))


def change_writer(rows: pa.Table) -> pa.Table:
    at = rows.schema.get_field_index(Mutation.SOURCE_TABLE)
    return rows.set_column(at, Mutation.SOURCE_TABLE, pa.repeat("another", rows.num_rows))


def change_image(rows: pa.Table) -> pa.Table:
    at = rows.schema.get_field_index(Mutation.BEFORE)
    return rows.set_column(at, rows.schema.field(at), pa.array([[("id", "9")]] * rows.num_rows, MAP))


FIRST = build_rows(10, "a", IMAGES)


@pytest.mark.parametrize(
    "parts",
    [
        [FIRST, build_rows(20, "a", [{"id": "2", "text": "x"}])],
        [build_rows(10, "a", [*IMAGES, IMAGES[0]])],
        [build_rows(10, "b", [*IMAGES, IMAGES[0]])],
        [FIRST, change_writer(build_rows(20, "a", [{"id": "5", "text": "x"}]))],
        [change_image(FIRST)],
        [FIRST, build_rows(20, "a", [{"id": None, "text": "x"}])],
        [FIRST, build_rows(20, "a", [{"text": "x"}])],
        [FIRST, build_rows(20, "a", [{"id": "3", "text": "x"}, {"id": "4"}])],
        [FIRST, build_rows(200, "a", [{"id": "3", "text": "x"}])],
        [FIRST, build_rows(20, "unknown", [{"id": "3", "text": "x"}])],
        [pa.concat_tables([build_rows(10, "a", IMAGES[:1]), build_rows(10, "b", IMAGES[1:])])],
    ],
    ids=[
        "key of another block", "key of its block", "equal rows without a key", "two sources", "an update", "NULL key",
        "no key", "other columns", "after the window", "unknown table", "two tables of a transaction",
    ],
)  # fmt: skip
def test_other_windows_go_the_general_way(parts: list[pa.Table]) -> None:  # R-15 S4-03
    assert find_base_blocks([MemoryRows(rows) for rows in parts], CELLS) is None


def test_keys_are_compared_as_texts() -> None:
    """Numbers that differ are different texts; texts that differ may be one number."""
    images = [{"id": id, "text": "x"} for id in ("1", "01", "+1")]
    assert len(require_blocks([MemoryRows(build_rows(10, "a", images))])) == 1
    assert find_base_blocks([MemoryRows(build_rows(10, "a", [*images, images[1]]))], CELLS) is None


def test_equal_keys_of_two_segments_are_two_rows() -> None:
    parts: list[Rows] = [MemoryRows(FIRST), MemoryRows(build_rows(110, "a", IMAGES))]
    assert [block.place for block in require_blocks(parts)] == [SegmentTable(0, "d", "a"), SegmentTable(1, "d", "a")]
    assert pc.count_distinct(require_blocks(parts)[0].take_keys()).as_py() == 2
