"""A verdict that cannot be told is the fault of one write, and keeps no other from its own."""

from __future__ import annotations

import threading

from binlake.errors import BinlakeError
from pump_service.pump.ceiling import Ceiling


def test_a_write_that_fails_at_its_verdict_keeps_no_other_from_theirs() -> None:
    asked, release, told = threading.Event(), threading.Event(), threading.Event()

    def clock() -> int:
        asked.set()
        assert release.wait(60)
        return 1 << 40

    def broken(_: BinlakeError | None) -> None:
        raise ValueError("the disk is gone")

    ceiling = Ceiling(clock)
    ceiling.ask(1, broken)
    assert asked.wait(60)
    ceiling.ask(2, lambda _: told.set())
    release.set()
    assert told.wait(20)
    later = threading.Event()
    ceiling.ask(3, lambda _: later.set())
    assert later.wait(20), "nobody asks any more"
