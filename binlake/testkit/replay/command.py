"""`binlake capture`: replays a recorded capture into the pumps, or shows what it contains.

Its progress is a bar on a terminal, otherwise a line every few seconds.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from binlake.cluster.placement import ClockClient, EtcdClient, NodeRegistry, PdClient
from binlake.cluster.pumpclient import PumpClient
from binlake.common.commandline import add_output
from binlake.errors import ConfigError
from binlake.pump_service.statusport import add_status_port, build_status_tls
from binlake.pump_service.waits import wait_for_event
from binlake.testkit.captures.capture import Capture
from binlake.testkit.replay import replayer
from binlake.testkit.replay.recorded import Outcomes, build_status_server
from binlake.testkit.replay.replayer import ReplayClock, Replayer, ReplayResult, ReplaySchedule

_EVERY_S = 5.0


@contextmanager
def show_progress(name: str) -> Iterator[replayer.Progress]:
    """A function that takes (acked, total) and shows them on stderr."""
    if not sys.stderr.isatty():
        yield _ProgressLines(name)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(name, total=None)
        yield lambda acked, total: bar.update(task, completed=acked, total=total)


class _ProgressLines:
    def __init__(self, name: str) -> None:
        self._name = name
        self._began = time.monotonic()
        self._printed_at = self._began

    def __call__(self, acked: int, total: int) -> None:
        now = time.monotonic()
        if now - self._printed_at >= _EVERY_S:
            self._printed_at = now
            speed = acked / (now - self._began)
            print(f"{self._name}: {acked} of {total} binlogs, {speed:.0f} per second", file=sys.stderr, flush=True)


class CaptureCommand:
    """The command; `replay` needs a `binlake pd` whose clock is held, and at least one pump."""

    name = "capture"
    examples = (
        "binlake capture replay tests/captures/keys --rate 1000",
        "binlake capture info tests/captures/keys",
    )
    help = "replay a recorded TiDB capture into the pumps, or show what it contains"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the options."""
        actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
        replay = actions.add_parser("replay", help="write it to every registered pump and serve its status port")
        replay.add_argument("dir", help="folder of the capture")
        replay.add_argument("--pd-urls", default="http://127.0.0.1:2379", help="PD addresses, comma list")
        replay.add_argument("--rate", type=float, help="binlogs per second (default: as fast as the pumps accept them)")
        add_status_port(replay)
        replay.add_argument("--keep-serving", action="store_true", help="serve the status port until interrupted")
        add_output(replay)
        info = actions.add_parser("info", help="show what it contains")
        info.add_argument("dir", help="folder of the capture")
        add_output(info)

    def run(self, args: argparse.Namespace) -> int:
        """Replay, or show the capture. Raises BinlakeError."""
        if args.action == "info":
            _print(_build_capture_json(Capture(args.dir)), args.output)
            return 0
        if args.rate is not None and args.rate <= 0:
            raise ConfigError("--rate must be above 0", where={"rate": args.rate})
        return _replay(args)


def _replay(args: argparse.Namespace) -> int:
    urls = [url.strip() for url in args.pd_urls.split(",") if url.strip()]
    capture = Capture(args.dir)
    outcomes = Outcomes.of(capture)
    with _open_client(urls, capture) as client, _open_clock(urls) as clock:
        replayer = Replayer(capture, outcomes, client, clock, rate=args.rate)
        tls = build_status_tls(args)
        with build_status_server(capture, outcomes, clock.read_ts, args.status_addr, tls=tls) as server:
            with show_progress(capture.name) as progress:
                result = replayer.run(progress)
            _print(_build_result_json(capture, result, server.url), args.output)
            if args.keep_serving:
                wait_for_event(threading.Event())
    return 0


@contextmanager
def _open_client(urls: list[str], capture: Capture) -> Iterator[PumpClient]:
    pd, etcd = PdClient(urls), EtcdClient(urls)
    try:
        cluster = pd.fetch_cluster_id()
        expected = find_cluster_id(capture)
        if expected not in (None, cluster):
            raise ConfigError(
                f"PD serves cluster {cluster}, the capture is of cluster {expected}",
                where={"capture": capture.name, "pd": ",".join(urls)},
                hint=f"start `binlake pd --cluster-id {expected}` with a fresh data directory",
            )
        with PumpClient(NodeRegistry(etcd), cluster) as client:
            yield client
    finally:
        etcd.close()
        pd.close()


@contextmanager
def _open_clock(urls: list[str]) -> Iterator[ReplayClock]:
    lead = ClockClient(urls)
    try:
        yield ReplayClock(lead)
    finally:
        lead.close()


def find_cluster_id(capture: Capture) -> int | None:
    """The cluster id in the capture's requests; None when it was not recorded. Raises ConfigError for several."""
    ids = sorted(int(text) for text in capture.meta.get("cluster_id_in_requests") or ())
    if len(ids) > 1:
        raise ConfigError("the capture contains several clusters", where={"capture": capture.name, "ids": ids})
    return ids[0] if ids else None


def _build_result_json(capture: Capture, result: ReplayResult, url: str) -> dict[str, Any]:
    return {
        "capture": capture.name,
        "binlogs": result.binlogs,
        "transactions": result.transactions,
        "last_commit_ts": str(result.last_ts),
        "seconds": round(result.seconds, 2),
        "status_url": url,
    }


def _build_capture_json(capture: Capture) -> dict[str, Any]:
    outcomes = Outcomes.of(capture)
    schedule = ReplaySchedule.of(capture, outcomes)
    states = [state.commit_ts for state in capture.read_states()]
    return {
        "capture": capture.name,
        "version": capture.meta.get("version", ""),
        "cluster_id": str(find_cluster_id(capture) or ""),
        "binlogs": len(schedule.steps),
        "transactions": schedule.transactions,
        "orphans": sum(transaction.orphan for transaction in outcomes.by_start.values()),
        "ddl_jobs": sum(1 for _ in capture.read_jobs()),
        "first_commit_ts": str(schedule.first_bound),
        "last_commit_ts": str(max((step.holds for step in schedule.steps), default=0)),
        "states": len(states),
        "state_commit_ts": [str(ts) for ts in states],
    }


def _print(values: dict[str, Any], output: str) -> None:
    if output == "json":
        print(json.dumps(values), flush=True)
        return
    for name, value in values.items():
        print(f"{name}: {' '.join(value) if isinstance(value, list) else value}", flush=True)
