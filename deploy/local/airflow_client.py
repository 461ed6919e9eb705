"""The requests of the demo and the tests to a running Airflow: only its public API, with a login."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import httpx

from deploy.local.process import ProcessError

_ANSWER_S = 120.0  # an API server answers late while it still imports its parts


class AirflowClient:
    """A logged-in client of the Airflow at `url`; `http` is its connection, for requests outside the API."""

    def __init__(self, url: str, user: str, password: str) -> None:
        answer = httpx.post(f"{url}/auth/token", json={"username": user, "password": password}, timeout=_ANSWER_S)
        token = answer.raise_for_status().json()["access_token"]
        self.http = httpx.Client(base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=_ANSWER_S)

    def close(self) -> None:
        """Close its connections."""
        self.http.close()

    def get(self, path: str, **query: Any) -> Any:
        """The JSON at `path`. Raises httpx.HTTPError."""
        return self.http.get(path, params=query).raise_for_status().json()

    def wait_for_dag(self, dag_id: str, seconds: float) -> None:
        """Return when the DAG exists. Raises ProcessError with Airflow's import errors after `seconds`."""
        until = time.monotonic() + seconds
        while self.http.get(f"/api/v2/dags/{dag_id}").status_code != httpx.codes.OK:
            if time.monotonic() > until:
                errors = self.get("/api/v2/importErrors")["import_errors"]
                texts = " | ".join(error["stack_trace"].strip().splitlines()[-1] for error in errors)
                raise ProcessError(f"there is no DAG {dag_id} after {seconds:.0f} s; import errors: {texts or 'none'}")
            time.sleep(0.5)

    def wait_for_run(self, dag_id: str, run_id: str, seconds: float) -> dict[str, Any]:
        """Return the run when it has succeeded or failed. Raises ProcessError after `seconds`."""
        until, state = time.monotonic() + seconds, "unknown"
        while time.monotonic() < until:
            # An API server that is still loading its parts answers late.
            with contextlib.suppress(httpx.TimeoutException):
                run = self.fetch_run(dag_id, run_id)
                if (state := run["state"]) in ("success", "failed"):
                    return run
            time.sleep(0.3)
        raise ProcessError(f"the run {run_id} of {dag_id} has not ended after {seconds:.0f} s; its state: {state}")

    def set_paused(self, dag_id: str, paused: bool) -> None:
        """Pause or unpause the DAG; again if the server fails. Raises httpx.HTTPError."""
        path, body = f"/api/v2/dags/{dag_id}", {"is_paused": paused}
        # On SQLite this request fails if a task is starting: it notes itself while it blocks the server's event loop,
        # on which the task's transaction waits in order to end.
        answer = self.ask("PATCH", path, body)
        if answer.is_server_error:
            answer = self.ask("PATCH", path, body)
        answer.raise_for_status()

    def ask(self, method: str, path: str, body: Any = None) -> httpx.Response:
        """Any other call; returns the answer, whatever its status."""
        return self.http.request(method, path, json=body)

    def trigger(self, dag_id: str, conf: dict[str, Any] | None = None) -> str:
        """Start a run now; returns its run_id. Raises httpx.HTTPError."""
        answer = self.ask("POST", f"/api/v2/dags/{dag_id}/dagRuns", {"logical_date": None, "conf": conf or {}})
        return str(answer.raise_for_status().json()["dag_run_id"])

    def mark(self, dag_id: str, run_id: str, state: str) -> None:
        """Set the state of a run manually: `failed` ends its tasks."""
        self.ask("PATCH", f"/api/v2/dags/{dag_id}/dagRuns/{run_id}", {"state": state}).raise_for_status()

    def clear(self, dag_id: str, run_id: str) -> None:
        """Restart the run with its own conf."""
        self.ask("POST", f"/api/v2/dags/{dag_id}/dagRuns/{run_id}/clear", {"dry_run": False}).raise_for_status()

    def fetch_run(self, dag_id: str, run_id: str) -> dict[str, Any]:
        """One run: state, note, conf, data interval."""
        return dict(self.get(f"/api/v2/dags/{dag_id}/dagRuns/{run_id}"))

    def fetch_task(self, dag_id: str, run_id: str, task_id: str) -> dict[str, Any]:
        """One task instance of a run."""
        return next(task for task in self.fetch_tasks(dag_id, run_id) if task["task_id"] == task_id)

    def fetch_xcom(self, dag_id: str, run_id: str, task_id: str, key: str = "return_value") -> Any:
        """What a task stored under `key`, as a browser gets it. Raises httpx.HTTPError."""
        path = f"/api/v2/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/xcomEntries/{key}"
        return self.get(path, deserialize=False)["value"]

    def fetch_runs(self, dag_id: str) -> list[dict[str, Any]]:
        """The runs of the DAG, the oldest first."""
        return list(self.get(f"/api/v2/dags/{dag_id}/dagRuns", limit=100, order_by="start_date")["dag_runs"])

    def fetch_tasks(self, dag_id: str, run_id: str) -> list[dict[str, Any]]:
        """The task instances of a run."""
        return list(self.get(f"/api/v2/dags/{dag_id}/dagRuns/{run_id}/taskInstances")["task_instances"])

    def fetch_log_end(self, dag_id: str, run_id: str, task: dict[str, Any], lines: int = 6) -> str:
        """The last `lines` lines of the log of a task's last try."""
        path = f"/api/v2/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task['task_id']}/logs/{task['try_number']}"
        content = self.http.get(path, headers={"Accept": "application/json"}).raise_for_status().json()["content"]
        events = [str(line.get("event", line)) if isinstance(line, dict) else str(line) for line in content]
        return " | ".join(events[-lines:])
