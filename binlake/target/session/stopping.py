"""SIGTERM asks, it does not tear: between two batches the transaction is rolled back, the lease given up (R-60)."""

from __future__ import annotations

import signal
import threading
from types import FrameType

from binlake.errors import Transient


class StopFlag:
    """Set by SIGTERM while the context is open (in a main thread), or by `set` from anywhere."""

    def __init__(self) -> None:
        self._asked = threading.Event()
        self._installed = False
        self._before: object = None

    def __enter__(self) -> StopFlag:
        # Python takes signal handlers from the main thread only; elsewhere the process decides for itself.
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGTERM, self._on_signal)
            self._installed = True
        return self

    def __exit__(self, *_: object) -> None:
        if self._installed:
            signal.signal(signal.SIGTERM, self._before or signal.SIG_DFL)  # type: ignore[arg-type]
            self._installed = False

    def set(self) -> None:
        """Ask to stop."""
        self._asked.set()

    def is_set(self) -> bool:
        """Whether a stop was requested."""
        return self._asked.is_set()

    def check(self) -> None:
        """Raises Transient when a stop was requested."""
        if self._asked.is_set():
            raise Transient(
                "stopped on request: the open transaction is rolled back",
                hint="run finalize again, it continues from the checkpoint",
            )

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._asked.set()
