"""Lets a main thread wait in slices, so that signals are handled in time.

Python runs a signal's handler between two steps of the main thread. A signal that arrives just before a wait without a
timeout would be handled only after the wait, although it is the handler that should end the wait (seen on a busy
machine: a pump that was asked to stop did not).
"""

from __future__ import annotations

import queue
import threading
from typing import TypeVar

Item = TypeVar("Item")

SLICE_S = 0.5
"""The most seconds by which the handling of a signal may be late."""


def wait_for_event(event: threading.Event) -> None:
    """Wait until `event` is set."""
    while not event.wait(SLICE_S):
        pass


def wait_for_item(items: queue.SimpleQueue[Item]) -> Item:
    """Wait for the next of `items` and return it."""
    while True:
        try:
            return items.get(timeout=SLICE_S)
        except queue.Empty:
            continue
