"""Reading columns from images that are maps equals looking up each name in each map."""

from __future__ import annotations

from random import Random

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import seeds

from binlake.statements import build_images_from_maps

MAPS = pa.map_(pa.string(), pa.string())
NAMES = ("id", "no", "a", "b", "名", "", "long name of a column")
Entries = list[tuple[str, str | None]]


def drawn_row(draw: Random, names: list[str]) -> Entries | None:
    if draw.random() < 0.2:
        return None
    return [(name, draw.choice([None, "", "1", "é\n", "x" * 30])) for name in names]


def drawn(draw: Random) -> pa.Array:
    names = [draw.choice(NAMES) for _ in range(draw.randint(0, 5))]
    rows = [drawn_row(draw, names) for _ in range(draw.randint(0, 9))]
    for row in filter(None, rows):
        change = draw.random()
        if change < 0.05:
            row.reverse()
        elif change < 0.1:
            row.pop()
        elif change < 0.15:
            row[draw.randrange(len(row))] = (draw.choice(NAMES), "other")
    first, last = draw.randint(0, 3), draw.randint(0, 3)
    return pa.array([*rows[:first], *rows, *rows[:last]], MAPS)[first : first + len(rows)]


def looked_up(images: pa.Array, names: tuple[str, ...]) -> dict[str, list[str | None]]:
    return {name: pc.map_lookup(images, name, "first").to_pylist() for name in names}


@pytest.mark.parametrize("seed", seeds(400))
def test_columns_equal_a_lookup(seed: int) -> None:
    images = drawn(Random(seed))
    wanted = (*NAMES, "of none")
    found = build_images_from_maps(images, wanted)
    assert {name: values.to_pylist() for name, values in found.items()} == looked_up(images, wanted)
    assert {str(values.type) for values in found.values()} == {"string"}


def test_images_of_one_definition_are_sliced(monkeypatch: pytest.MonkeyPatch) -> None:
    full = pa.array([[("id", "1"), ("a", None)], None, [("id", "2"), ("a", "x")]] * 50, MAPS)[1:140]
    expected = looked_up(full, ("a", "id"))
    monkeypatch.delattr(pc, "index_in")
    found = build_images_from_maps(full, ("a", "id"))
    assert {name: values.to_pylist() for name, values in found.items()} == expected


def test_no_maps_give_no_values() -> None:
    for images in (pa.array([], MAPS), pa.nulls(3, MAPS), pa.array([[], []], MAPS)):
        assert build_images_from_maps(images, ("a",))["a"].to_pylist() == [None] * len(images)


TEXT_MAPS = st.one_of(st.none(), st.dictionaries(st.sampled_from("abcä"), st.one_of(st.none(), st.text(max_size=3))))


@settings(deadline=None)
@given(st.lists(TEXT_MAPS, max_size=12), st.data())
def test_selected_rows_and_entries_behind_null(maps: list[dict[str, str | None] | None], data: st.DataObject) -> None:
    # A slice of a longer array whose NULL rows still have entries.
    whole = pa.array([[("a", "x")], *(None if m is None else list(m.items()) for m in maps), [("b", "y")]], MAPS)
    hidden = pa.array([data.draw(st.booleans()) for _ in whole])
    filled = pa.MapArray.from_arrays(whole.offsets, whole.keys, whole.items)
    for images, lost in ((whole, [False] * len(whole)), (_hidden(filled, hidden), hidden.to_pylist())):
        values = [{} if m is None or gone else m for m, gone in zip(maps, lost[1:-1], strict=True)]
        found = build_images_from_maps(images[1:-1], ("c", "a", "ä"))
        assert {name: column.to_pylist() for name, column in found.items()} == {
            name: [value.get(name) for value in values] for name in ("c", "a", "ä")
        }
        rows = data.draw(st.lists(st.integers(0, len(maps) - 1), max_size=9)) if maps else []
        some = build_images_from_maps(images[1:-1], ("a",), np.array(rows, np.int64))
        assert some["a"].to_pylist() == [values[row].get("a") for row in rows]


def _hidden(maps: pa.MapArray, where: pa.Array) -> pa.MapArray:
    """`maps` with the given rows set to NULL, while their entries stay."""
    valid = pc.invert(where).buffers()[1]
    return pa.Array.from_buffers(maps.type, len(maps), [valid, maps.buffers()[1]], children=[_entries(maps)])


def _entries(maps: pa.MapArray) -> pa.StructArray:
    return pa.StructArray.from_arrays([maps.keys, maps.items], fields=[maps.type.key_field, maps.type.item_field])
