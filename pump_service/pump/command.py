"""`binlake pump`: runs one pump, or several on one host, until a signal or a command ends it."""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import resource
import signal
import sys
import threading
from pathlib import Path
from typing import TextIO

import structlog

from binlake import tso
from binlake.base.startup import collect_rarely
from binlake.cluster.placement import PdClient, open_placement
from binlake.errors import ConfigError
from binlake.pump_service.pump.config import PumpConfig
from binlake.pump_service.pump.processes import Supervisor, build_commands
from binlake.pump_service.pump.server import PumpServer
from binlake.pump_service.pump.set_aside import find_above, set_aside
from binlake.pump_service.pump.settings import PumpFile, add_flags, find_ignored_keys, read_settings, to_config

log = structlog.get_logger()

_SWITCH_S = 0.001  # seconds that one thread may hold Python's lock while others wait; Python's default is 0.005


def _end_the_process(args: threading.ExceptHookArgs) -> None:
    # A pump with a dead thread must not look alive, not even when its log cannot be written (a full disk). A restart
    # loses no acked binlog.
    try:
        threading.__excepthook__(args)
    finally:
        if args.thread is not None and args.thread.name.startswith("pump-"):
            os._exit(os.EX_SOFTWARE)


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


def _forget_pump(args: argparse.Namespace) -> int:
    # A pump has no lake and reads no replication, so this is imported only when the command is called.
    from binlake.config import load_replication
    from binlake.lake.forget import forget
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
