"""What a proof of an R costs: a small multiple of storing it, so a backlog is proved faster than writers make it."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

BENCH = Path(__file__).parents[3] / "bench"


def test_a_proof_costs_a_few_times_what_storing_it_costs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # 5.6 ms of CPU each were 119 times the floor; 5,000 a second and core are 200 us, some four times of it.
    monkeypatch.syspath_prepend(str(BENCH))
    bench = importlib.import_module("bench_proofs")
    floor = bench.trust(tmp_path / "floor", 3000)
    proved = bench.prove(tmp_path / "proved", 3000)
    assert proved.cpu_s < 6 * floor.cpu_s, f"{proved} against {floor}"
