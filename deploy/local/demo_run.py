"""How a demo runs: its servers start in parallel and end with it; an error is printed in one line."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path

import structlog

from binlake.errors import BinlakeError
from deploy.local.airflow import Airflow
from deploy.local.demo_report import Report
from deploy.local.process import ProcessError

ROOT = Path(__file__).resolve().parents[2]
SPARK_CONNECTION = "spark_connect_demo"
# A part that was still starting is stopped in a later round.
_AGAIN_S = 0.2


@contextmanager
def run_servers(
    report: Report,
    starts: Mapping[str, Callable[[], object]],
    airflow: Airflow,
    ends: Sequence[Callable[[], object]],
    keep: bool,
) -> Iterator[None]:
    """Start the servers of `starts` and `airflow`; stop them with `ends`, except after success with `keep`."""
    done = False
    try:
        _start(report, {**starts, "Airflow": airflow.start}, [airflow.stop, *ends])
        yield
        done = True
    finally:
        if not (keep and done):
            # A second ctrl-C must not leave some servers running.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            report.say("stopping all servers")
            # First Airflow, which uses the other servers; then these in parallel.
            airflow.stop()
            with ThreadPoolExecutor(len(ends)) as pool:
                for future in [pool.submit(end) for end in ends]:
                    future.result()
            report.say("all servers have stopped")


def exit_status(run: Callable[[], int]) -> int:
    """The result of `run`, a demo in this process; an error is printed in one line."""
    signal.signal(signal.SIGTERM, _interrupt)
    # The pipeline's processes have their own logs; here only warnings and errors are of interest.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    # The jobs are children of Airflow and must import this checkout too.
    os.environ["PYTHONPATH"] = str(ROOT)
    try:
        return run()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except (BinlakeError, ProcessError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _start(report: Report, starts: Mapping[str, Callable[[], object]], ends: Sequence[Callable[[], object]]) -> None:
    def start(name: str, call: Callable[[], object]) -> None:
        began = time.monotonic()
        call()
        report.say(f"{name} up after {time.monotonic() - began:.1f} s")

    report.say(f"starting {', '.join(starts)}; Spark and Airflow take the longest")
    with ThreadPoolExecutor(len(starts)) as pool:
        futures = [pool.submit(start, name, call) for name, call in starts.items()]
        try:
            for name, future in zip(starts, futures, strict=True):
                with report.wait_for(f"{name} to start"):
                    future.result()
        except BaseException:
            # Stop the servers that are still starting, instead of waiting half a minute for Spark and Airflow.
            while wait(futures, timeout=_AGAIN_S).not_done:
                for end in ends:
                    end()
            raise


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt
