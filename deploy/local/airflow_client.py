"""What the demo and the tests ask of a running Airflow: its public API with a login, nothing of its insides."""

from __future__ import annotations

import time
from typing import Any

import httpx

from deploy.local.process import ProcessError

ENDED = frozenset({"success", "failed"})


class AirflowClient:
    """A logged-in client of the Airflow at `url`."""

    def __init__(self, url: str, user: str, password: str) -> None:
        answer = httpx.post(f"{url}/auth/token", json={"username": user, "password": password}, timeout=30)
        token = answer.raise_for_status().json()["access_token"]
        self._http = httpx.Client(base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=30)

    def close(self) -> None:
        """Drop its connections."""
        self._http.close()

    def get(self, path: str, **query: Any) -> Any:
        """The JSON at `path`. Raises httpx.HTTPError."""
        return self._http.get(path, params=query).raise_for_status().json()

    def wait_for_dag(self, dag_id: str, seconds: float) -> None:
        """Return when the DAG is there. Raises ProcessError, with Airflow's import errors, after `seconds`."""
        until = time.monotonic() + seconds
        while self._http.get(f"/api/v2/dags/{dag_id}").status_code != httpx.codes.OK:
            if time.monotonic() > until:
                errors = self.get("/api/v2/importErrors")["import_errors"]
                told = " | ".join(error["stack_trace"].strip().splitlines()[-1] for error in errors)
                raise ProcessError(f"no DAG {dag_id} after {seconds:.0f} s; import errors: {told or 'none'}")
            time.sleep(0.5)

    def set_paused(self, dag_id: str, paused: bool) -> None:
        """Let the schedule of the DAG rest, or go on."""
        self._http.patch(f"/api/v2/dags/{dag_id}", json={"is_paused": paused}).raise_for_status()

    def trigger(self, dag_id: str, conf: dict[str, str] | None = None) -> str:
        """Start a run now; its run_id."""
        answer = self._http.post(f"/api/v2/dags/{dag_id}/dagRuns", json={"logical_date": None, "conf": conf or {}})
        return str(answer.raise_for_status().json()["dag_run_id"])

    def runs(self, dag_id: str) -> list[dict[str, Any]]:
        """The runs of the DAG, the oldest first."""
        return list(self.get(f"/api/v2/dags/{dag_id}/dagRuns", limit=100, order_by="start_date")["dag_runs"])

    def active_runs(self, dag_id: str) -> list[dict[str, Any]]:
        """The runs that have not ended."""
        return [run for run in self.runs(dag_id) if run["state"] not in ENDED]

    def tasks(self, dag_id: str, run_id: str) -> list[dict[str, Any]]:
        """The task instances of a run."""
        return list(self.get(f"/api/v2/dags/{dag_id}/dagRuns/{run_id}/taskInstances")["task_instances"])

    def log_end(self, dag_id: str, run_id: str, task: dict[str, Any], lines: int = 6) -> str:
        """The last `lines` of the log of a task's last try."""
        path = f"/api/v2/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task['task_id']}/logs/{task['try_number']}"
        content = self._http.get(path, headers={"Accept": "application/json"}).raise_for_status().json()["content"]
        events = [str(line.get("event", line)) if isinstance(line, dict) else str(line) for line in content]
        return " | ".join(events[-lines:])
