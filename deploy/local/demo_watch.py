"""Watches a replication while its DAG runs, and compares the target with the source's recorded states.

The comparison needs no pause: it reads the checkpoint row and every table in one snapshot of the target. In atomic
mode a segment, its ledger row and the checkpoint become visible together (DESIGN 3.8), so a snapshot with a consistent
checkpoint at a recorded commit_ts must equal that state exactly.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pymysql
from pymysql.connections import Connection
from pymysql.constants import ER

from binlake.cluster.placement import PdClient
from binlake.config import Replication
from binlake.lake.paths import LakePaths
from binlake.lake.windowlog import WindowLog
from binlake.target import Checkpoint
from binlake.testkit.captures import Comparison, compare_state, connect
from binlake.testkit.captures.capture import StateAt
from deploy.local.airflow_client import AirflowClient
from deploy.local.demo_report import Report, WindowLine
from deploy.local.process import ProcessError
from deploy.local.source import CaptureSource

PATIENCE_S = 600.0
_POLL_S = 0.25
_RUNS_S = 3.0


class DemoTarget:
    """The target of `replication`, read with plain SQL, independently of the pipeline."""

    def __init__(self, replication: Replication, cluster_id: int) -> None:
        if replication.target is None:
            raise ProcessError(f"{replication.name} has no SQL target")
        self._place = replication.target
        self.cluster_id = cluster_id
        self._connection = self._connect()

    def close(self) -> None:
        """Close its connection."""
        self._connection.close()

    def read_checkpoint(self) -> Checkpoint | None:
        """The checkpoint row; None if there is none yet."""
        try:
            return self._read(self._connection)
        except pymysql.err.MySQLError as error:
            if error.args[0] in (ER.BAD_DB_ERROR, ER.NO_SUCH_TABLE):
                return None
            raise

    @contextmanager
    def open_snapshot(self) -> Iterator[tuple[Checkpoint | None, Connection[Any]]]:
        """The checkpoint and a connection, both in one snapshot of the target."""
        connection = self._connect()
        try:
            with connection.cursor() as cursor:
                cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
            yield self._read(connection), connection
        finally:
            connection.close()

    def _connect(self) -> Connection[Any]:
        return connect(self._place.host, self._place.port, self._place.user, self._place.password)

    def _read(self, connection: Connection[Any]) -> Checkpoint | None:
        query = f"SELECT checkPoint FROM `{self._place.checkpoint_schema}`.checkpoint WHERE clusterID = %s"
        with connection.cursor() as cursor:
            cursor.execute(query, (self.cluster_id,))
            rows = cursor.fetchall()
        return Checkpoint.from_json(rows[0][0]) if rows else None


class DemoWatch:
    """Follows one replication from its first window until the last of `states` (ascending) has been compared."""

    def __init__(
        self,
        replication: Replication,
        source: CaptureSource,
        states: Sequence[StateAt],
        client: AirflowClient,
        report: Report,
    ) -> None:
        self._target = DemoTarget(replication, source.cluster_id)
        self._source = source
        self._waiting = list(states)
        self._client = client
        self._report = report
        self._dag = replication.name
        self._windows = WindowLog(LakePaths.of(replication))
        self._pd = PdClient([source.pd_url])
        self._clock: list[tuple[float, int]] = []
        self._shown: set[tuple[int, int]] = set()
        self._at = 0
        self._compared: Checkpoint | None = None
        self._fed = False
        self._runs_looked = 0.0
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="runs")
        self._runs: Future[list[dict[str, Any]]] | None = None

    def __enter__(self) -> DemoWatch:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()
        self._pd.close()
        self._target.close()

    def compare_all_states(self) -> bool:
        """Whether the target was equal at each state. Raises ProcessError if it stops moving or a run fails."""
        equal, moved = True, time.monotonic()
        while self._waiting:
            self._clock.append((time.monotonic(), self._pd.fetch_ts()))
            checkpoint = self._target.read_checkpoint()
            if checkpoint is not None and checkpoint.commit_ts != self._at:
                self._at, moved = checkpoint.commit_ts, time.monotonic()
            if checkpoint is not None and checkpoint.commit_ts >= self._waiting[0].commit_ts:
                equal = self._compare(self._waiting.pop(0)) and equal
            self._print_windows()
            self._require_progress(moved)
            time.sleep(_POLL_S)
        self._finish()
        return equal

    def wait_until_mirrored(self) -> None:
        """Return when the mirrors have reached the target's position. Raises ProcessError if they do not."""
        since = time.monotonic()
        while (self._windows.find_greatest_hi("mirror") or 0) < self._at:
            self._require_progress(since)
            time.sleep(_POLL_S)

    def _compare(self, state: StateAt) -> bool:
        with self._target.open_snapshot() as (checkpoint, connection):
            if checkpoint is None or checkpoint.commit_ts != state.commit_ts or not checkpoint.consistent:
                # A state that was passed before it could be read counts as not equal.
                self._report.print_missed_state(state, checkpoint.commit_ts if checkpoint else 0)
                return False
            self._compared = checkpoint
            result = compare_state(state, connection)
            tables = self._compare_each_table(state, connection) if not self._waiting else []
        self._report.add_comparison(result, len(self._waiting) + 1)
        self._report.print_tables(tables)
        return result.equal and all(one.equal for _, one in tables)

    def _compare_each_table(self, state: StateAt, connection: Connection[Any]) -> list[tuple[str, Comparison]]:
        alone = [replace(state, contents=(table,), tables=None, databases=None) for table in state.contents]
        return [(single.contents[0]["table"], compare_state(single, connection)) for single in alone]

    def _print_windows(self) -> None:
        # There is no new window: the log, which grows, is not read four times a second.
        if any(hi == self._at for _, hi in self._shown):
            return
        events = self._windows.read_events()
        for event in events:
            bounds = (event["lo"], event["hi"])
            if event["stage"] == "finalize" and event["state"] == "done" and bounds not in self._shown:
                self._shown.add(bounds)
                same_run = [other for other in events if other["run_id"] == event["run_id"]]
                self._report.add_window(WindowLine.of(event, same_run, self._compute_lag(event["hi"], event["at_ms"])))

    def _compute_lag(self, hi: int, at_ms: int) -> float:
        """Seconds from the time the source's clock passed `hi` until the target reached it."""
        passed = next((at for at, ts in self._clock if ts >= hi), time.monotonic())
        return max(0.0, time.monotonic() - (time.time() - at_ms / 1000) - passed)

    def _require_progress(self, moved: float) -> None:
        if time.monotonic() - self._runs_looked < _RUNS_S:
            return
        self._runs_looked = time.monotonic()
        for part in self._source.parts:
            if part.pid is None:
                raise ProcessError(f"{part.name} has ended: {part.read_log_end()}")
        fed = self._source.read_result()
        if fed and not self._fed:
            self._fed = True
            self._report.say(f"the capture has been replayed: {fed['transactions']} transactions in {fed['seconds']} s")
        # In a thread: on a busy machine Airflow may answer after the target has passed the state to compare.
        self._runs = self._runs or self._pool.submit(self._client.fetch_runs, self._dag)
        failed: list[dict[str, Any]] = []
        if self._runs.done():
            failed = [run for run in self._runs.result() if run["state"] == "failed"]
            self._runs = None
        if failed:
            run_id = failed[0]["dag_run_id"]
            raise ProcessError(f"the run {run_id} failed: {self._describe_failed_tasks(run_id)}")
        if time.monotonic() - moved > PATIENCE_S:
            raise ProcessError(f"nothing has moved for {PATIENCE_S:.0f} s; the target is at {self._at}")

    def _describe_failed_tasks(self, run_id: str) -> str:
        tasks = [task for task in self._client.fetch_tasks(self._dag, run_id) if task["state"] == "failed"]
        return "; ".join(f"{task['task_id']}: {self._client.fetch_log_end(self._dag, run_id, task)}" for task in tasks)

    def _finish(self) -> None:
        self._print_windows()
        # By now another window may have moved the row.
        if self._compared is not None:
            self._report.print_checkpoint(self._target.cluster_id, json.dumps(dict(self._compared.raw)))
