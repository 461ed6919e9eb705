"""How a main thread waits: in slices, so that a signal is never handled late.

Python runs a signal's handler between two steps of the main thread. A signal that comes right before a wait without an
end would be handled behind it, and what it asks for is what ends the wait (seen: a pump that was asked to stop, and
did not, on a busy machine).
"""

from __future__ import annotations

import queue
import threading
from typing import TypeVar

Item = TypeVar("Item")

SLICE_S = 0.5
"""Seconds by which a signal may be late."""


def wait_set(event: threading.Event) -> None:
    """Until `event` is set."""
    while not event.wait(SLICE_S):
        pass


def next_of(items: queue.SimpleQueue[Item]) -> Item:
    """The next of `items`, whenever it comes."""
    while True:
        try:
            return items.get(timeout=SLICE_S)
        except queue.Empty:
            continue
