"""`binlake pd`: the embedded placement driver as a process."""

from __future__ import annotations

import argparse
import signal
import threading

from binlake.errors import ConfigError
from binlake.pump_service.pd.server import PlacementDriver
from binlake.pump_service.waits import wait_for_event
from binlake.rpc import Tls


class PdCommand:
    """Run the embedded placement driver until SIGTERM or SIGINT."""

    examples = ("binlake pd --addr 10.0.0.5:2379 --data-dir /var/lib/binlake/pd",)
    help = "run the embedded placement driver (PD's timestamps and registry)"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare address, data directory, cluster id, TLS and led clock."""
        parser.add_argument("--addr", default="127.0.0.1:2379", metavar="HOST:PORT", help="port 0 picks a free port")
        parser.add_argument(
            "--advertise-addr", default="", metavar="HOST:PORT", help="address by which other machines reach it"
        )
        parser.add_argument(
            "--status-addr",
            default="",
            metavar="HOST:PORT",
            help="answer /healthz and /readyz there (default: nowhere)",
        )
        parser.add_argument(
            "--data-dir", default="data.pd", metavar="DIR", help="folder of its data (default %(default)s)"
        )
        parser.add_argument(
            "--cluster-id", type=int, metavar="NUMBER", help="refuse a data directory of another cluster"
        )
        parser.add_argument(
            "--led",
            action="store_true",
            help="the clock is set by `binlake capture replay` and does not follow the wall clock",
        )
        parser.add_argument(
            "--drop-damaged", action="store_true", help="start without the damaged entries of the registry's journal"
        )
        for name, text in (
            ("ca", "authority of callers: they must show a certificate"),
            ("cert", "own"),
            ("key", "its key"),
        ):
            parser.add_argument(f"--ssl-{name}", default="", metavar="FILE", help=f"{text}, PEM")
        parser.add_argument(
            "--cert-allowed-cn", default="", metavar="NAMES", help="common names of callers, comma list; none = any"
        )
        parser.add_argument(
            "--start-ts", type=int, default=1, help="timestamp at which a clock set by a capture starts"
        )

    def run(self, args: argparse.Namespace) -> int:
        """Serve until a signal; the address is printed once it is known."""
        host, _, port = args.addr.rpartition(":")
        if not port.isdigit():
            raise ConfigError("not an address", where={"addr": args.addr}, hint="HOST:PORT")
        stopped = threading.Event()
        for name in (signal.SIGTERM, signal.SIGINT):
            signal.signal(name, lambda *_: stopped.set())
        led_from = args.start_ts if args.led else None
        driver = PlacementDriver(
            args.data_dir,
            host or "127.0.0.1",
            int(port),
            args.cluster_id,
            advertise=args.advertise_addr,
            led_from=led_from,
            drop_damaged=args.drop_damaged,
            tls=_build_tls(args),
            status_addr=args.status_addr,
        )
        with driver as pd:
            print(f"serving {pd.url} cluster_id={pd.cluster_id}", flush=True)
            wait_for_event(stopped)
        return 0


def _build_tls(args: argparse.Namespace) -> Tls | None:
    names = tuple(name.strip() for name in args.cert_allowed_cn.split(",") if name.strip())
    tls = Tls.of(args.ssl_ca, args.ssl_cert, args.ssl_key, names)
    if names and tls is None:
        raise ConfigError("--cert-allowed-cn needs --ssl-ca, --ssl-cert and --ssl-key")
    return tls
