"""Images that are maps as columns: the same as asking each map for each name."""

from __future__ import annotations

from random import Random

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from binlake.statement import images_from_maps, maps

MAPS = pa.map_(pa.string(), pa.string())
NAMES = ("id", "a", "名", "", "long name of a column")
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


@pytest.mark.parametrize("seed", range(400))
def test_columns_are_those_of_a_lookup(seed: int) -> None:
    images = drawn(Random(seed))
    wanted = (*NAMES, "of none")
    found = images_from_maps(images, wanted)
    assert {name: values.to_pylist() for name, values in found.items()} == looked_up(images, wanted)
    assert {str(values.type) for values in found.values()} == {"string"}


def test_images_of_one_definition_are_cut_and_not_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    full = pa.array([[("id", "1"), ("a", None)], None, [("id", "2"), ("a", "x")]] * 50, MAPS)[1:140]
    expected = looked_up(full, ("a", "id"))
    monkeypatch.delattr(maps.pc, "map_lookup")
    found = images_from_maps(full, ("a", "id"))
    assert {name: values.to_pylist() for name, values in found.items()} == expected


def test_no_map_has_no_values() -> None:
    for images in (pa.array([], MAPS), pa.nulls(3, MAPS), pa.array([[], []], MAPS)):
        assert images_from_maps(images, ("a",))["a"].to_pylist() == [None] * len(images)
