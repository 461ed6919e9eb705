"""A pump in a separate process, to be killed: `pump_child.py DATA_DIR [--index-never-written] [--as-a-process]`."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import structlog
from pump_cluster import MemoryCluster

from binlake.pump_service.pump.command import raise_file_limit, tune
from binlake.pump_service.pump.config import PumpConfig
from binlake.pump_service.pump.index import PumpIndex
from binlake.pump_service.pump.server import PumpServer


def main(data_dir: str, *options: str) -> None:
    if "--as-a-process" in options:
        tune()
        raise_file_limit()
        structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    cluster = MemoryCluster()
    config = PumpConfig(
        data_dir=Path(data_dir),
        addr="127.0.0.1:0",
        node_id="pump1",
        gen_binlog_interval_s=0.05,
        stop_write_at_available_space=0,
        segment_bytes=20_000,
    )
    server = PumpServer(config, oracle=cluster, members=cluster)
    server.start()
    if "--index-never-written" in options:
        # The crash point between fsync and index: acks are sent, but LevelDB gets no entry.
        PumpIndex.write = lambda *_, **__: threading.Event().wait()  # type: ignore[method-assign]
    print(server.addr, flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
