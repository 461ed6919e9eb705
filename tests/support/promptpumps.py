"""Pumps in the test's process whose watermarks move when a test asks for it, and otherwise seldom.

Ten fakes and heartbeats a second would let a test wait only a tenth of a second, but cost a tenth of a core per source.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

from binlake.cluster.placement import NodeRegistry
from binlake.pump_service.pump.config import PumpConfig
from binlake.pump_service.pump.server import PumpServer

_BEAT_S = 1.0
_LOOK_S = 0.02
_WAIT_S = 120.0


class PromptPump(PumpServer):
    """A pump that does on request what a pump's own timer does each second."""

    def beat(self) -> None:
        """Write a fake binlog if the watermark has not moved, and register the watermark."""
        self._fakes.tick()
        self._publish()


def start_pump(pd_url: str, folder: Path, node_id: str, **more: Any) -> PromptPump:
    """Start a pump on the directory `folder`; `more`: settings in addition to the tests' usual ones."""
    pump = PromptPump(PumpConfig(
        pd_urls=(pd_url,), addr="127.0.0.1:0", data_dir=folder, node_id=node_id, gen_binlog_interval_s=_BEAT_S,
        heartbeat_interval_s=_BEAT_S, stop_write_at_available_space=1 << 20, **more,
    ))  # fmt: skip
    pump.start()
    return pump


def settle(pumps: Collection[PromptPump], registry: NodeRegistry, ts: int) -> int:
    """Return `ts` when every online pump's registered watermark has passed it; `pumps` are made to advance theirs."""
    deadline = time.monotonic() + _WAIT_S
    while any(pump.max_commit_ts < ts for pump in registry.list_pumps() if pump.state == "online"):
        assert time.monotonic() < deadline, f"a pump's watermark stays below {ts}: {registry.list_pumps()}"
        for pump in list(pumps):
            pump.beat()
        time.sleep(_LOOK_S)
    return ts
