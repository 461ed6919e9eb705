"""A column's distinct values are numbered in one place: a dictionary may have values of rows that are not there."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from binlake.common.arrowcolumns import encode_dictionary

ROOT = Path(__file__).resolve().parents[2]
WHOLE = pa.array(["a", "b", None, "c", "b"]).dictionary_encode()


def test_only_one_place_numbers_values() -> None:
    asking = [
        str(path.relative_to(ROOT))
        for room in ("binlake", "pump_service", "spark_jobs", "plugins")
        for path in (ROOT / room).rglob("*.py")
        if "dictionary_encode(" in path.read_text(encoding="utf-8")
    ]
    assert asking == ["binlake/common/arrowcolumns.py"]


@pytest.mark.parametrize(
    "values",
    [
        WHOLE[1:3],
        WHOLE.filter(pa.array([False, True, True, False, False])),
        pa.chunked_array([WHOLE[1:2], WHOLE[2:3]]),
        pa.chunked_array([WHOLE[1:2], pa.array([None], pa.string()).dictionary_encode()]),
        pa.array(["b", None]),
        pa.chunked_array([["b"], [None]], pa.string()),
    ],
)
def test_a_dictionary_has_the_values_that_occur(values: pa.Array | pa.ChunkedArray) -> None:
    coded = encode_dictionary(values)
    assert coded.dictionary.to_pylist() == ["b"]
    assert coded.indices.to_pylist() == [0, None]


def test_no_value_is_an_empty_dictionary() -> None:
    assert encode_dictionary(WHOLE[:0]).dictionary.to_pylist() == []
    assert encode_dictionary(pa.chunked_array([], WHOLE.type)).dictionary.to_pylist() == []
