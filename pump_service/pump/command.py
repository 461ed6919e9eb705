"""`binlake pump`: runs one pump, or several on one host, until a signal or a command ends it.

Several pumps are processes of their own, each with its own port, directory, log and registration. Pump N has the port
of `addr` + N (0: a free one each), `data-dir`/N, node id `node-id`-N, and the log `data-dir`/pump.N.log (or `log-file`
with N before its suffix). All other settings are shared.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import queue
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

import structlog

from binlake import tso
from binlake.cluster.placement import PdClient, open_placement
from binlake.common.startup import collect_rarely
from binlake.errors import ConfigError
from binlake.pump_service.pump.config import PumpConfig
from binlake.pump_service.pump.future_timestamps import find_above, set_aside
from binlake.pump_service.pump.server import PumpServer
from binlake.pump_service.pump.settings import (
    PumpFile,
    add_flags,
    find_ignored_keys,
    read_flags,
    read_settings,
    to_config,
)
from binlake.pump_service.waits import wait_for_item

log = structlog.get_logger()

_BACKOFF_S = 1.0
_LONGEST_S = 30.0
_SWITCH_S = 0.001  # seconds that one thread may hold Python's lock while others wait; Python's default is 0.005


class PumpCommand:
    """The command. Its options have the original's names where the original has such an option (tidb-binlog 2.12)."""

    name = "pump"
    examples = (
        "binlake pump --config /etc/binlake/pump.toml",
        "binlake pump config",
        "binlake pump forget pump-1 --replication orders.toml",
        "binlake pump set-aside --accept-loss",
    )
    help = "run a pump: stores binlogs durably and serves complete transactions in commit order"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the settings of a pump, `--processes`, and the subcommands."""
        add_flags(parser)
        add = parser.add_argument
        add(
            "--processes",
            type=_parse_count,
            default=1,
            metavar="N",
            help="run N pumps: N ports, data-dir/0..N-1, N node ids",
        )
        add("--restart", action="store_true", help="with --processes: restart a pump that died")
        actions = parser.add_subparsers(dest="action", metavar="ACTION")
        actions.add_parser("config", help="print the effective settings as JSON, and start nothing")
        forget = actions.add_parser("forget", help="let windows continue without a pump that is permanently lost")
        forget.add_argument("node", help="its node id")
        forget.add_argument(
            "--replication", required=True, metavar="FILE", help="the replication that waits for this pump"
        )
        forget.add_argument(
            "--accept-loss", action="store_true", help="confirm that its binlogs which have not landed are lost"
        )
        aside = actions.add_parser(
            "set-aside", help="move binlogs with timestamps from the future out of a stopped pump"
        )
        aside.add_argument(
            "--accept-loss", action="store_true", help="move them; without this option they are only listed"
        )

    def run(self, args: argparse.Namespace) -> int:
        """Serve until asked to leave; 0 after a clean exit. Raises BinlakeError if it cannot start or lost its node
        id."""
        if args.action == "forget":
            return _forget_pump(args)
        settings = read_settings(args)
        config = to_config(settings)
        if args.action == "config":
            print(json.dumps(settings.model_dump(mode="json", by_alias=True), indent=2))
            return 0
        if args.action == "set-aside":
            return _set_aside(config, accept_loss=args.accept_loss)
        if args.processes > 1:
            return _supervise(args, settings)
        _log_to(settings)
        for key, reason in find_ignored_keys(settings).items():
            log.warning("setting_ignored", key=key, reason=reason)
        return _serve(config)


def build_commands(settings: PumpFile, args: argparse.Namespace, count: int) -> list[list[str]]:
    """The command line of each of `count` pumps."""
    shared = read_flags(args)
    if args.config is not None:
        shared["config"] = str(args.config)
    start = [sys.executable, "-m", "binlake.cli", "pump"]
    return [
        start + [f"--{name}={value}" for name, value in {**shared, **_derive_process_settings(settings, n)}.items()]
        for n in range(count)
    ]


def _derive_process_settings(settings: PumpFile, number: int) -> dict[str, str]:
    log_file = Path(settings.log_file or settings.data_dir / "pump.log")
    values = {
        "addr": _shift_port(settings.addr, number),
        "data-dir": str(settings.data_dir / str(number)),
        "log-file": str(log_file.with_suffix(f".{number}{log_file.suffix}")),
    }
    if settings.advertise_addr:
        values["advertise-addr"] = _shift_port(settings.advertise_addr, number)
    if settings.node_id:
        values["node-id"] = f"{settings.node_id}-{number}"
    if settings.socket:
        values["socket"] = f"{settings.socket}.{number}"
    return values


def _shift_port(addr: str, number: int) -> str:
    host, _, port = addr.rpartition(":")
    return addr if port == "0" or not port.isdigit() else f"{host}:{int(port) + number}"


class Supervisor:
    """Runs the commands until all have ended. A crash is logged; with `restart`, the pump is started again."""

    def __init__(self, commands: Sequence[Sequence[str]], *, restart: bool) -> None:
        self._commands = [list(command) for command in commands]
        self._restart = restart
        self._events: queue.SimpleQueue[tuple[str, int, int]] = queue.SimpleQueue()
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._deaths = [0] * len(self._commands)
        self._stopping = False
        self._failed = False

    def ask_to_stop(self) -> None:
        """Stop all pumps gracefully; a second call kills them. Safe from a signal handler."""
        self._events.put(("stop", 0, 0))

    def run(self) -> int:
        """Start all and wait until all have ended; 1 when one crashed, else 0."""
        for number in range(len(self._commands)):
            self._start(number)
        pending = 0
        while self._running or pending:
            kind, number, status = wait_for_item(self._events)
            if kind == "stop":
                self._stop()
            elif kind == "again":
                pending -= 1
                if not self._stopping:
                    self._start(number)
            elif self._handle_end(number, status):
                pending += 1
        return int(self._failed)

    def _start(self, number: int) -> None:
        process = subprocess.Popen(self._commands[number])
        self._running[number] = process
        log.info("pump_started", number=number, pid=process.pid)

        def wait() -> None:
            self._events.put(("ended", number, process.wait()))

        threading.Thread(target=wait, name=f"wait-{number}", daemon=True).start()

    def _handle_end(self, number: int, status: int) -> bool:
        """Log the end of a pump; return whether it will be started again."""
        process = self._running.pop(number)
        if status == 0 or self._stopping:
            log.info("pump_ended", number=number, pid=process.pid, status=status)
            return False
        delay_s = min(_LONGEST_S, _BACKOFF_S * 2 ** self._deaths[number])
        self._deaths[number] += 1
        again = f"in {delay_s:g} s" if self._restart else "no (--restart is off)"
        log.error(
            "pump_died", number=number, pid=process.pid, status=status, deaths=self._deaths[number], restart=again
        )
        if self._restart:
            timer = threading.Timer(delay_s, self._events.put, (("again", number, 0),))
            timer.daemon = True
            timer.start()
            return True
        self._failed = True
        return False

    def _stop(self) -> None:
        for process in self._running.values():
            if self._stopping:
                process.kill()
            else:
                process.terminate()
        self._stopping = True


def _end_the_process(args: threading.ExceptHookArgs) -> None:
    # A pump with a dead thread must not look alive, not even when its log cannot be written (a full disk). A restart
    # loses no acked binlog.
    try:
        threading.__excepthook__(args)
    finally:
        if args.thread is not None and args.thread.name.startswith("pump-"):
            os._exit(os.EX_SOFTWARE)


def _forget_pump(args: argparse.Namespace) -> int:
    # A pump has no lake and reads no replication, so this is imported only when the command is called.
    from binlake.config import load_replication
    from binlake.lake.members import forget
    from binlake.lake.paths import LakePaths

    replication = load_replication(args.replication, secrets=False)
    with open_placement(replication.source) as placement:
        entry = placement.registry.find_pump(args.node)
    status = entry.status if entry else None
    print(forget(LakePaths.of(replication), args.node, status, accept_loss=args.accept_loss))
    return 0


def _set_aside(config: PumpConfig, *, accept_loss: bool) -> int:
    with contextlib.closing(PdClient(config.pd_urls, tls=config.tls.to_tls())) as pd:
        line = pd.fetch_ts() + tso.compose(int(config.future_slack_s * 1000))
    binlogs = set_aside(config.data_dir, line) if accept_loss else find_above(config.data_dir, line)
    for binlog in binlogs:
        when = tso.to_datetime(binlog.ts).isoformat(timespec="seconds") if binlog.ts <= tso.LAST_TS else "after 2099"
        size = len(binlog.payload)
        print(f"{binlog.kind} start_ts={binlog.start_ts} commit_ts={binlog.commit_ts} ({when}), {size} bytes")
    if not binlogs:
        print(f"no binlog is above {line}")
    elif accept_loss:
        print(f"{len(binlogs)} moved out, copies are in {config.data_dir / 'aside'}; the next start rebuilds the index")
    else:
        print(f"{len(binlogs)} are above {line}; --accept-loss moves them out: no window will contain them")
    return 0


def _serve(config: PumpConfig) -> int:
    tune()
    raise_file_limit()
    server = PumpServer(config)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: server.request_leave("pause"))
    threading.excepthook = _end_the_process
    if server.start():
        print(f"pump {server.node_id} listens at {server.addr}", flush=True)
        server.serve()
    return 0


def tune() -> None:
    """Tune the interpreter for a process that runs nothing but a pump."""
    # A stream at full speed may hold Python's lock this long while an fsync has returned and its writers wait.
    sys.setswitchinterval(_SWITCH_S)
    collect_rarely()


def raise_file_limit() -> None:
    """Raise the limit of open files to what this process may have."""
    # LevelDB, connections and streams need many files; a shell's soft limit is often 1024.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError) as error:
        log.warning("file_limit_not_raised", soft=soft, hard=hard, error=str(error))


def _supervise(args: argparse.Namespace, settings: PumpFile) -> int:
    supervisor = Supervisor(build_commands(settings, args, args.processes), restart=args.restart)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: supervisor.ask_to_stop())
    return supervisor.run()


def _log_to(settings: PumpFile) -> None:
    level = {"warn": "warning", "fatal": "critical"}.get(settings.log_level, settings.log_level)
    file = _open_log_file(Path(settings.log_file)) if settings.log_file else sys.stderr
    structlog.configure(
        logger_factory=structlog.PrintLoggerFactory(file),
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
    )


def _open_log_file(path: Path) -> TextIO:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("a", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"the log file cannot be written: {error.strerror}", where={"log-file": path}) from None


def _parse_count(text: str) -> int:
    number = int(text)
    if not 1 <= number <= 256:
        raise argparse.ArgumentTypeError("1 to 256")
    return number
