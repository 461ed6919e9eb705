"""The digest of rows depends only on their values, not on the way Arrow stores them."""

from __future__ import annotations

import random
from datetime import date
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from support.engines import HostileEngine

from binlake.common import rowhash
from binlake.lake.tables import parse_schema
from binlake.spark_jobs.engine.rows import MemoryRows
from binlake.spark_jobs.job.lake import fold_rows

SCHEMA = parse_schema(
    "big BIGINT, small INT, text STRING, bytes BINARY, day DATE, flag BOOLEAN, names ARRAY<STRING>, "
    "numbers ARRAY<BIGINT>, image MAP<STRING, STRING>"
)
SIZES = (0, 1, 7, 8, 9, 15, 16, 17, 63, 64, 65, 95, 96, 97, 104, 200, 5000)


def one_text(draw: random.Random, size: int) -> str:
    return "".join(draw.choice("aü😀\x00\\'") for _ in range(size))


def one_row(draw: random.Random, size: int) -> dict[str, Any]:
    def or_null(value: Any) -> Any:
        return None if draw.random() < 0.15 else value

    texts = [or_null(one_text(draw, draw.choice(SIZES[:8]))) for _ in range(draw.randrange(4))]
    return {
        "big": or_null(draw.randrange(-(1 << 63), 1 << 63)),
        "small": or_null(draw.randrange(-(1 << 31), 1 << 31)),
        "text": or_null(one_text(draw, size)),
        "bytes": or_null(draw.randbytes(size)),
        "day": or_null(date(2026, 1, 1 + draw.randrange(28))),
        "flag": or_null(draw.random() < 0.5),
        "names": or_null(texts),
        "numbers": or_null([or_null(draw.randrange(100)) for _ in range(draw.randrange(3))]),
        "image": or_null([(f"c{n}", text) for n, text in enumerate(texts)]),
    }


def rows_of(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows, SCHEMA)


def hashes(rows: pa.Table | pa.RecordBatch, columns: list[str] | None = None) -> list[int]:
    found: list[int] = rowhash.hash_rows(rows, columns or rows.schema.names).tolist()
    return found


@pytest.fixture
def drawn() -> pa.Table:
    draw = random.Random(11)
    return rows_of([one_row(draw, size) for size in SIZES * 8])


def test_different_rows_have_different_hashes_and_equal_rows_the_same(drawn: pa.Table) -> None:
    twice = hashes(pa.concat_tables([drawn, drawn]))
    assert twice[: drawn.num_rows] == twice[drawn.num_rows :]
    assert len(set(twice)) == drawn.num_rows


def test_chunks_slices_dictionaries_and_widths_do_not_matter(drawn: pa.Table) -> None:
    whole = hashes(drawn)
    cut = pa.concat_tables([drawn.slice(0, 5), drawn.slice(5, 1), drawn.slice(6)])
    assert hashes(cut) == whole
    assert hashes(drawn.slice(17, 40)) == whole[17:57]
    assert [hash_ for batch in drawn.to_batches(max_chunksize=7) for hash_ in hashes(batch)] == whole
    encoded = drawn.set_column(2, "text", drawn["text"].dictionary_encode())
    encoded = encoded.set_column(3, "bytes", encoded["bytes"].cast(pa.large_binary()))
    assert hashes(encoded.set_column(1, "small", encoded["small"].cast(pa.int64()))) == whole
    assert hashes(drawn.slice(0, 0)) == []


def test_every_byte_position_and_null_matters() -> None:
    base = b"0123456789" * 13
    texts = [base, *(base[:at] + b"x" + base[at + 1 :] for at in range(len(base)))]
    texts += [base[:size] for size in range(len(base))] + [base[:size] + b"\x00" for size in range(len(base))]
    assert len(set(hashes(pa.table({"a": pa.array(texts)})))) == len(texts)
    pairs = [("a", "b"), ("b", "a"), ("ab", ""), ("", "ab"), (None, "ab"), ("ab", None), (None, None), ("", None)]
    assert len(set(hashes(pa.table({"a": [a for a, _ in pairs], "b": [b for _, b in pairs]})))) == len(pairs)
    lists = [[], None, [None], ["a"], ["a", "b"], ["b", "a"], ["ab"], ["a", None], [None, "a"], ["a", "a"]]
    assert len(set(hashes(pa.table({"a": pa.array(lists, pa.list_(pa.string()))})))) == len(lists)


def test_order_of_map_entries_does_not_matter() -> None:
    kind = pa.map_(pa.string(), pa.string())
    same = [[("a", "1"), ("b", None), ("c", "")], [("c", ""), ("a", "1"), ("b", None)]]
    other = [
        [("a", None), ("b", "1"), ("c", "")],
        [("a", "1"), ("b", ""), ("c", None)],
        [("a", "1"), ("c", "")],
        [],
        None,
    ]
    found = hashes(pa.table({"m": pa.array(same + other, kind)}))
    assert found[0] == found[1]
    assert len(set(found[1:])) == 1 + len(other)


def test_fold_equals_that_of_its_parts_in_any_order(drawn: pa.Table) -> None:
    own = rowhash.hash_rows(drawn, drawn.column_names)
    whole = rowhash.fold(own)
    assert whole == rowhash.merge_folds([rowhash.fold(own[40:]), rowhash.fold(own[:40]), rowhash.fold(own[:0])])
    assert whole == rowhash.fold(np.flip(own))
    assert rowhash.compute_digest(whole) != rowhash.compute_digest(rowhash.fold(own[1:]))
    assert whole != rowhash.fold(np.concatenate([own, own[:1]]))


def test_digests_are_stable() -> None:
    # Sealed manifests contain them: a changed function would refuse every landed window.
    draw = random.Random(5)
    rows = rows_of([one_row(draw, size) for size in SIZES])
    digest = rowhash.compute_digest(rowhash.fold(rowhash.hash_rows(rows, rows.column_names)))
    assert digest == "2:9847a29df5481f48feba108f37440d36dda3be206b9180213451fd717b571215"


def test_type_without_a_digest_is_refused() -> None:
    with pytest.raises(TypeError, match="double"):
        hashes(pa.table({"a": [0.5]}))


def test_digest_of_parts_is_that_of_the_whole(drawn: pa.Table) -> None:
    columns, engine = drawn.column_names, HostileEngine(random.Random(1))
    parts = [MemoryRows(drawn.slice(first, 7)) for first in range(0, drawn.num_rows, 7)]
    assert fold_rows(engine, parts, columns) == rowhash.fold(rowhash.hash_rows(drawn, columns))
    assert fold_rows(engine, [], columns) == rowhash.merge_folds([])
