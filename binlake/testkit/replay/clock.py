"""The replay clock: the bound of PD's clock, and what the capture's TiDB knows at that time (DESIGN 5).

While the replay runs, nothing at or above `bound` has happened yet; after the release the clock advances in real time.
"""

from __future__ import annotations

import threading
import time

from binlake import tso
from binlake.cluster.placement import ClockClient
from binlake.errors import ConfigError


class ReplayClock:
    """Leads PD's clock; thread-safe. Bounds never decrease."""

    def __init__(self, pd: ClockClient) -> None:
        self._pd = pd
        self._lock = threading.Lock()
        self._bound = 0
        self._released: float | None = None

    def lead(self, bound: int) -> None:
        """Move the bound up to `bound` (TSO). Raises PD's errors, ConfigError if PD's clock is already past it."""
        with self._lock:
            if bound > self._bound:
                last = self._pd.lead(bound)
                if last >= bound:
                    raise ConfigError(
                        f"PD has already given out the timestamp {last}, but the replay needs PD's clock below {bound}",
                        hint="this capture was already replayed into this cluster, or PD followed the wall clock: "
                        "start a new `binlake pd` with its clock held, and pumps with fresh data directories",
                    )
                self._bound = bound

    def release(self) -> None:
        """End the replay: let PD's clock advance in real time."""
        with self._lock:
            self._pd.release()
            self._released = time.monotonic()

    def read_ts(self) -> int:
        """The ts below which everything has happened."""
        with self._lock:
            if self._released is None:
                return self._bound
            return self._bound + tso.compose(int((time.monotonic() - self._released) * 1000))
