"""Several pumps on one host, started by one command: each is a process with its own port, directory, log and
registration.

Pump N has the port of `addr` + N (0: a free one each), `data-dir`/N, node id `node-id`-N, and the log
`data-dir`/pump.N.log (or `log-file` with N before its suffix). All other settings are shared.
"""

from __future__ import annotations

import argparse
import queue
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import structlog

from binlake.pump_service.pump.settings import PumpFile, read_flags
from binlake.pump_service.waits import wait_for_item

log = structlog.get_logger()

_BACKOFF_S = 1.0
_LONGEST_S = 30.0


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
