"""If a callback of the ceiling fails, only its own write is affected; all other writes get their verdict."""

from __future__ import annotations

import threading

from binlake.errors import BinlakeError
from binlake.pump_service.pump.future_timestamps import Ceiling


def test_a_failing_callback_does_not_stop_other_verdicts() -> None:
    asked, release, answered = threading.Event(), threading.Event(), threading.Event()

    def clock() -> int:
        asked.set()
        assert release.wait(60)
        return 1 << 40

    def broken(_: BinlakeError | None) -> None:
        raise ValueError("the disk is gone")

    ceiling = Ceiling(clock)
    ceiling.ask(1, broken)
    assert asked.wait(60)
    ceiling.ask(2, lambda _: answered.set())
    release.set()
    assert answered.wait(20)
    later = threading.Event()
    ceiling.ask(3, lambda _: later.set())
    assert later.wait(20), "the ceiling no longer answers"
