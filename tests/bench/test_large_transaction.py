"""One transaction of 220 MiB: the peak memory of real processes does not follow its size (U-06, S0-07)."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench_transaction import measure

# It writes and applies a million rows.
pytestmark = [pytest.mark.long, pytest.mark.soak, pytest.mark.mariadb, pytest.mark.e2e]
MIB = 220


@pytest.mark.parametrize("settings", [["window.engine=local"], ["window.engine=local", "target.mode=parallel"]])
def test_peaks_of_pump_and_windows(settings: list[str], tmp_path: Path) -> None:
    cost = measure(MIB << 20, settings, tmp_path)
    assert not cost.wrong
    assert cost.mib > 0.99 * MIB
    # 480 on an idle machine; all of it at once was 1,400.
    assert cost.peak < 600
    assert cost.pump_written - cost.pump_idle < 1.3 * cost.mib
    assert cost.pump_pulled - cost.pump_idle < 40
