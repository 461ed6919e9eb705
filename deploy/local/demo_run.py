"""How a demo runs: its servers start side by side and end with it, and what went wrong is one line."""

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
# Only the quick compiler: over the few windows of a demo the other one costs more than it saves (measured).
SHORT_LIVED_JAVA = "-XX:TieredStopAtLevel=1"
SPARK_CONNECTION = "spark_connect_demo"
# A part that was just being started is stopped at the next look.
_AGAIN_S = 0.2


@contextmanager
def running(
    report: Report,
    starts: Mapping[str, Callable[[], object]],
    airflow: Airflow,
    ends: Sequence[Callable[[], object]],
    keep: bool,
) -> Iterator[None]:
    """The servers of `starts` and `airflow`, started; ended by `ends`, unless all went well and `keep`."""
    done = False
    try:
        _start(report, {**starts, "Airflow": airflow.start}, [airflow.stop, *ends])
        yield
        done = True
    finally:
        if not (keep and done):
            # A second ctrl-C must not leave half of it running.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            report.say("stopping all servers")
            # First who asks the others, then the others side by side.
            airflow.stop()
            with ThreadPoolExecutor(len(ends)) as pool:
                for future in [pool.submit(end) for end in ends]:
                    future.result()
            report.say("all servers have stopped")


def exit_status(run: Callable[[], int]) -> int:
    """What `run` returns, of a demo in this process; says in one line what went wrong."""
    signal.signal(signal.SIGTERM, _interrupt)
    # What the pipeline says is in the logs of its processes; here only what goes wrong is of interest.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    # The jobs are children of Airflow: they find this checkout as this process does.
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

    with ThreadPoolExecutor(len(starts)) as pool:
        futures = [pool.submit(start, name, call) for name, call in starts.items()]
        try:
            for future in futures:
                future.result()
        except BaseException:
            # They would come up for nothing: half a minute of Spark and Airflow.
            while wait(futures, timeout=_AGAIN_S).not_done:
                for end in ends:
                    end()
            raise


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt
