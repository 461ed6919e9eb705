"""`binlake pump`: runs one pump until SIGTERM or SIGINT, then leaves it paused."""

from __future__ import annotations

import argparse
import os
import signal
import threading
from pathlib import Path

from pump_service.pump.config import PumpConfig, parse_size
from pump_service.pump.server import PumpServer


def _urls(text: str) -> tuple[str, ...]:
    return tuple(url.strip() for url in text.split(",") if url.strip())


def _end_the_process(args: threading.ExceptHookArgs) -> None:
    # A pump with a dead part must not look alive; a restart loses nothing that was acked.
    threading.__excepthook__(args)
    if args.thread is not None and args.thread.name.startswith("pump-"):
        os._exit(os.EX_SOFTWARE)


class PumpCommand:
    """The command; its options have the original's names where it has them (tidb-binlog 2.12)."""

    name = "pump"
    help = "run a pump: stores binlogs durably and serves complete transactions in commit order"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the options with the defaults of PumpConfig."""
        default = PumpConfig()
        add = parser.add_argument
        add("--addr", default=default.addr, help="HOST:PORT to listen on (default %(default)s)")
        add("--advertise-addr", default="", help="HOST:PORT to register, when it is another one")
        add("--data-dir", type=Path, default=default.data_dir, help="where binlogs are kept (default %(default)s)")
        add("--pd-urls", type=_urls, default=default.pd_urls, help="PD urls, comma separated")
        add("--node-id", default="", help="name in the registry (default host:port; the data directory remembers it)")
        add("--status-url", type=_urls, default=(), help="status ports that know what became of a transaction")
        add("--gen-binlog-interval", type=float, default=default.gen_binlog_interval_s, help="seconds between fakes")
        add("--heartbeat-interval", type=float, default=default.heartbeat_interval_s, help="seconds between heartbeats")
        add("--stop-write-at-available-space", default="10 gib", help="take no writes below it (default %(default)s)")

    def run(self, args: argparse.Namespace) -> int:
        """Serve until a signal; 0 after a clean stop. Raises BinlakeError when it cannot start."""
        config = PumpConfig(
            pd_urls=args.pd_urls,
            addr=args.addr,
            advertise_addr=args.advertise_addr,
            data_dir=args.data_dir,
            node_id=args.node_id,
            status_urls=args.status_url,
            gen_binlog_interval_s=args.gen_binlog_interval,
            heartbeat_interval_s=args.heartbeat_interval,
            stop_write_at_available_space=parse_size(args.stop_write_at_available_space),
        )
        stop = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
        threading.excepthook = _end_the_process
        server = PumpServer(config)
        server.start()
        print(f"pump {server.node_id} listens at {server.addr}", flush=True)
        stop.wait()
        server.stop()
        return 0
