"""A waiting main thread handles a signal that did not wake it."""

from __future__ import annotations

import os
import queue
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from binlake.pump_service.waits import SLICE_S, wait_for_event, wait_for_item


@pytest.fixture
def taken_elsewhere() -> Iterator[None]:
    """SIGUSR1 is delivered to another thread, so that it never interrupts a wait of this one: this forces the race."""
    ended = threading.Event()
    other = threading.Thread(target=ended.wait)
    other.start()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    yield
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    ended.set()
    other.join()


def tell_soon() -> None:
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGUSR1)).start()


@pytest.mark.long
@pytest.mark.usefixtures("taken_elsewhere")
def test_waits_return_what_a_signal_handler_puts_or_sets() -> None:
    items: queue.SimpleQueue[str] = queue.SimpleQueue()
    signal.signal(signal.SIGUSR1, lambda *_: items.put("stop"))
    tell_soon()
    began = time.monotonic()
    assert wait_for_item(items) == "stop"
    event = threading.Event()
    signal.signal(signal.SIGUSR1, lambda *_: event.set())
    tell_soon()
    wait_for_event(event)
    assert event.is_set()
    assert time.monotonic() - began > SLICE_S / 2
