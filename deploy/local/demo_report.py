"""What the demo prints: one line for each event, with the seconds since the start."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from binlake import tso
from binlake.pipeline import BY_NAME
from binlake.testkit.captures import Comparison
from binlake.testkit.captures.capture import StateAt

QUIET_S = 10.0
"""Seconds of silence after which the demo says again what it waits for."""
_DERIVING = ("land", "merge", "compact", "convert")


@dataclass(frozen=True)
class WindowLine:
    """One applied window: bounds (commit_ts), rows landed and rows applied, seconds of each stage, lag in seconds.

    `tasks`: Spark's, of all stages; 0 = one process ran them.
    """

    lo: int
    hi: int
    rows: int
    applied: int
    seconds: Mapping[str, float]
    lag: float
    tasks: int = 0

    @property
    def engine(self) -> str:
        """What derived the window, and how fast: Spark's tasks, or one process."""
        seconds = sum(self.seconds.get(stage, 0.0) for stage in _DERIVING)
        rate = f", {self.rows / seconds:,.0f} rows/s" if seconds and self.rows else ""
        return f"on Spark, {self.tasks} tasks{rate}" if self.tasks else f"in one process{rate}"

    @classmethod
    def of(cls, event: Mapping[str, Any], same_run: Sequence[Mapping[str, Any]], lag: float) -> WindowLine:
        """From the event of finalize and all events of its run, which may have other windows too."""
        same_run = [other for other in same_run if event["lo"] <= other["lo"] and other["hi"] <= event["hi"]]
        # The mirrors may still be working when the target is finished.
        ended = [other for other in same_run if other["state"] != "started"]
        seconds = {other["stage"]: float(other["seconds"]) for other in ended if other["stage"] in BY_NAME}
        landed = sum(other["rows"] for other in same_run if other["stage"] == "merge")
        return cls(event["lo"], event["hi"], landed, event["rows"], seconds, lag, sum(map(_count_tasks, same_run)))


def _count_tasks(event: Mapping[str, Any]) -> int:
    return int(json.loads(event.get("detail") or "{}").get("spark_tasks", 0))


def measure_lag_s(event: Mapping[str, Any]) -> float:
    """Seconds from the commit time at which the window ends until finalize recorded it."""
    return max(0.0, (int(event["at_ms"]) - tso.extract_physical(int(event["hi"]))) / 1000)


class Report:
    """Prints events, and remembers windows and states for the summary at the end."""

    def __init__(self) -> None:
        self._began = self._said = time.monotonic()
        self._windows: list[WindowLine] = []
        self._states: list[Comparison] = []
        self._exempt: dict[str, int] = {}

    def say(self, text: str) -> None:
        """Print one line."""
        self._said = time.monotonic()
        print(f"{self._said - self._began:6.1f} s  {text}", flush=True)

    @contextmanager
    def wait_for(self, what: str, every_s: float = QUIET_S) -> Iterator[None]:
        """While it is open, say each `every_s` in which nothing else was said what is waited for."""
        done = threading.Event()

        def remind() -> None:
            while not done.wait(max(every_s - (time.monotonic() - self._said), 0.01)):
                if time.monotonic() - self._said >= every_s:
                    self.say(f"still waiting for {what}")

        thread = threading.Thread(target=remind, name="demo-waits", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def print_page(self, url: str, user: str, password: str, dag: str) -> None:
        """Print the address of the DAG's page."""
        self.say(f"Airflow: {url}/dags/{dag}   login {user} / {password}")

    def add_window(self, line: WindowLine) -> None:
        """A window has been applied."""
        self._windows.append(line)
        stages = " ".join(f"{stage} {seconds:.1f}" for stage, seconds in line.seconds.items())
        self.say(
            f"window {len(self._windows)} ({line.lo}, {line.hi}]  {line.rows} mutations  {line.applied} rows applied  "
            f"lag {line.lag:.1f} s  {line.engine}  [{stages}]"
        )

    def add_comparison(self, result: Comparison, still: int) -> None:
        """A state has been compared; `still` states were waiting, including this one."""
        del still
        self._states.append(result)
        for kind, count in result.exemptions.items():
            self._exempt[kind] = self._exempt.get(kind, 0) + count
        verdict = "equal" if result.equal else f"differs: {result.first_difference}"
        self.say(f"target at {result.commit_ts} ({result.step}): {result.tables} tables, {result.rows} rows: {verdict}")

    def print_missed_state(self, state: StateAt, at: int) -> None:
        """The target passed a state before it could be compared."""
        self.say(f"target at {state.commit_ts} ({state.step}): not observed, the target is already at {at}: differs")

    def print_tables(self, tables: Sequence[tuple[str, Comparison]]) -> None:
        """Print each table of the last state."""
        for name, result in tables:
            print(f"{'':10}{name:<24} {result.rows:>8,} rows  {result.first_difference or 'equal'}", flush=True)

    def print_checkpoint(self, cluster_id: int, text: str) -> None:
        """Print the target's checkpoint row."""
        self.say(f"checkpoint row: clusterID {cluster_id}  checkPoint {text}")

    def print_table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """Print a small table with a title."""
        self.say(title)
        cells = [[str(cell) for cell in row] for row in [columns, *rows]]
        widths = [max(len(row[n]) for row in cells) for n in range(len(columns))]
        for row in cells:
            print(
                f"{'':10}" + "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)), flush=True
            )

    def print_summary(self, equal: bool, url: str, user: str, password: str, keep: bool) -> None:
        """Print the summary."""
        lags = sorted(line.lag for line in self._windows)
        rows = sum(line.applied for line in self._windows)
        worst = f", lag {lags[len(lags) // 2]:.1f} s at the median, {lags[-1]:.1f} s at most" if lags else ""
        self.say(f"{len(self._windows)} windows, {rows} rows applied{worst}")
        for kind, count in sorted(self._exempt.items()):
            self.say(f"exempt from the comparison: {count} x {kind}")
        seen = sum(result.rows for result in self._states)
        verdict = "equal" if equal else "NOT EQUAL"
        self.say(f"{len(self._states)} states, {seen} rows compared: {verdict}")
        if keep:
            self.say(f"left running: {url}   login {user} / {password}   `make stop` stops it")


def format_moment(ts: int) -> str:
    """A commit_ts with its UTC time."""
    return f"{ts} ({tso.to_datetime(ts):%Y-%m-%d %H:%M:%S.%f} UTC)"
