"""How many bytes a range has, and where to divide it, is told from the index: about right, and never wrong in order."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from pump_helpers import MakePump, commit, open_storage, prewrite, reach, store

from binlake.cluster.pumpclient import PumpReader, RangeSize
from binlake.pump_service.pump.index import MOST_CUTS, measure_range
from binlake.pump_service.pump.storage import PumpStorage

SIZE, COUNT = 1_000, 200
EACH = SIZE + 150
"""About the bytes of a transaction's two records."""


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PumpStorage]:
    """Transactions with commit_ts 20, 30, ..., and then none for a long time."""
    storage = open_storage(Path(tmp_path_factory.mktemp("pump")) / "data")
    for number in range(COUNT):
        store(storage, prewrite(10 * number + 15, b"x" * SIZE), commit(10 * number + 15, 10 * number + 20))
    reach(storage, 10 * COUNT + 10)
    yield storage
    storage.close()


def _measure(storage: PumpStorage, after: int, upto: int, part_bytes: int) -> RangeSize:
    size, cuts = measure_range(storage.index, storage.records, after, upto, part_bytes)
    return RangeSize(size, cuts)


def test_bytes_of_a_range_are_about_those_of_its_transactions(storage: PumpStorage) -> None:
    for after, upto, count in ((0, 10_000, COUNT), (1_010, 10_000, COUNT // 2), (510, 1_010, 50)):
        assert _measure(storage, after, upto, 0).bytes == pytest.approx(count * EACH, rel=0.2)
    assert _measure(storage, 10 * COUNT + 10, 1 << 60, 1) == RangeSize(0, ())
    assert _measure(storage, 0, 14, 1) == RangeSize(0, ())


def test_parts_have_about_as_many_bytes_however_long_the_range_is(storage: PumpStorage) -> None:
    # Almost the whole time of the range is empty: parts of equal time would leave all to one.
    whole = _measure(storage, 0, 1 << 62, 0).bytes
    cuts = _measure(storage, 0, 1 << 62, whole // 4).cuts
    assert len(cuts) in (3, 4)
    sizes = [_measure(storage, lo, hi, 0).bytes for lo, hi in pairwise((0, *cuts, 1 << 62))]
    assert max(sizes) < 0.4 * whole
    assert list(cuts) == sorted(set(cuts))
    assert _measure(storage, 0, 1 << 62, whole).cuts == ()


def test_a_range_has_few_cuts_and_none_outside(storage: PumpStorage) -> None:
    cuts = _measure(storage, 1_000, 1_500, 1).cuts
    assert 40 <= len(cuts) <= MOST_CUTS
    assert 1_000 < min(cuts) <= max(cuts) < 1_500


def test_pump_answers_a_reader(build_pump: MakePump) -> None:
    pump = build_pump()
    reader = PumpReader(pump.addr, 1)
    found = reader.measure_range(0, 1 << 62, 1 << 20)
    assert found is not None
    # Only its own fake binlogs.
    assert (found.bytes < 10_000, found.cuts) == (True, ())
