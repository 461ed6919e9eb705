"""Events that peers trigger at will cannot fill the disk: few lines per minute, and the number of omitted ones."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from binlake.rpc import limits
from binlake.rpc.limits import SparingLog


def test_event_gets_ten_lines_per_minute_and_then_the_number_of_omitted_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(limits.time, "monotonic", lambda: now[0])
    log = SparingLog()
    with capture_logs() as lines:
        for number in range(1000):
            log.warning("refused", number=number)
        log.error("another", table="t")
        now[0] += 61
        log.warning("refused", number=1000)
        log.warning("refused", number=1001)
    assert [line["number"] for line in lines if line["event"] == "refused"] == [*range(10), 1000, 1001]
    assert [line.get("left_out") for line in lines if line["event"] == "refused"] == [None] * 10 + [990, None]
    assert [line["log_level"] for line in lines if line["event"] == "another"] == ["error"]
