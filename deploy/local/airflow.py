"""A private Airflow: its four parts as four child processes, loopback only, one admin with a known password.

`airflow standalone` leaves processes behind when it is stopped (stack facts, "Airflow"), so each part gets its own
session here.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx

from deploy.local.ports import HOST, free_port
from deploy.local.process import Child, ProcessError

START_S = 400.0
# Short: a scheduler would wait for its tasks, but a stage that is killed can be repeated.
_GRACE_S = 4.0
_ROOT = Path(__file__).resolve().parents[2]
_USER = "admin"
_PARTS: dict[str, tuple[str, ...]] = {
    "api-server": ("api-server", "--host", HOST),
    "scheduler": ("scheduler",),
    "dag-processor": ("dag-processor",),
    "triggerer": ("triggerer",),
}
# New and changed replications appear within seconds, and an idle scheduler polls often (stack facts, "Airflow"). Both
# use CPU all the time; the environment can override them.
_PACE = {
    "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "5",
    "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "5",
    "AIRFLOW__SCHEDULER__SCHEDULER_HEARTBEAT_SEC": "1",
    "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.1",
}


class Airflow:
    """One deployment below `home`, on SQLite unless `env` says otherwise.

    `env` is added to the environment of the parts and their tasks (replications, connections).
    `only`: start only these parts; pages and API need just the API server.
    """

    user = _USER

    def __init__(
        self, home: Path, env: Mapping[str, str], *, port: int = 0, only: Collection[str] = tuple(_PARTS)
    ) -> None:
        self.home = home
        self.port = port or free_port()
        self.password = secrets.token_hex(6)
        self.env = {**_build_settings(home, self.port), **env}
        self.parts = [
            Child(f"airflow-{name}", [_find_program(), *words, *self._list_port_arguments(name)], home, env=self.env)
            for name, words in _PARTS.items()
            if name in only
        ]
        # The API server reports the health of the database in place of its own.
        self._healthy_when = ["metadatabase", *(name.replace("-", "_") for name in only if name != "api-server")]

    @property
    def url(self) -> str:
        """The URL of the pages and the API."""
        return f"http://{HOST}:{self.port}"

    def start(self) -> Airflow:
        """Create the database if necessary, start all parts, return when all are healthy. Raises ProcessError."""
        self.home.mkdir(parents=True, exist_ok=True)
        # Airflow's own password file: it generates no password for users who are already in it.
        (self.home / "passwords.json").write_text(json.dumps({_USER: self.password}), encoding="utf-8")
        self._migrate()
        for part in self.parts:
            part.start()
        # One client for all requests: each new client reads the system's certificates, which costs most of the CPU.
        with httpx.Client(base_url=self.url, timeout=5) as client:
            self.parts[0].wait_until(lambda: self._is_healthy(client), START_S)
        return self

    def stop(self) -> None:
        """End all parts in parallel, with their tasks. Raises ProcessError if one does not end."""
        with ThreadPoolExecutor(len(self.parts)) as pool:
            list(pool.map(lambda part: part.stop(_GRACE_S), self.parts))

    def check(self) -> None:
        """Raises ProcessError if a part has ended."""
        for part in self.parts:
            if part.pid is None:
                raise ProcessError(f"{part.name} has ended: {part.read_log_end()}")

    def __enter__(self) -> Airflow:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _list_port_arguments(self, name: str) -> list[str]:
        return ["--port", str(self.port)] if name == "api-server" else []

    def _migrate(self) -> None:
        done = subprocess.run(
            [_find_program(), "db", "migrate"],
            env={**os.environ, **self.env},
            cwd=self.home,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise ProcessError(f"airflow db migrate failed: {done.stderr.strip()[-1500:]}")

    def _is_healthy(self, client: httpx.Client) -> bool:
        self.check()
        try:
            health = client.get("/api/v2/monitor/health").json()
        except (httpx.HTTPError, ValueError):
            return False
        return all(health.get(name, {}).get("status") == "healthy" for name in self._healthy_when)


def _find_program() -> str:
    # Next to this environment's Python, so the environment need not be activated.
    return str(Path(sys.executable).parent / "airflow")


def _build_settings(home: Path, port: int) -> dict[str, str]:
    url = f"http://{HOST}:{port}"
    return {
        "AIRFLOW_HOME": str(home),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
        "AIRFLOW__CORE__DAGS_FOLDER": str(_ROOT / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__PARALLELISM": "4",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": f"{_USER}:admin",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(home / "passwords.json"),
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{url}/execution/",
        "AIRFLOW__CORE__FERNET_KEY": "",
        # The parts share one SQLite file: on a busy disk one may wait for the others longer than the default 5 s.
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home.resolve()}/airflow.db?timeout=60",
        "AIRFLOW__API__BASE_URL": url,
        "AIRFLOW__API__HOST": HOST,
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__WORKERS": "1",
        "AIRFLOW__API__SECRET_KEY": secrets.token_urlsafe(32),
        "AIRFLOW__API_AUTH__JWT_SECRET": secrets.token_urlsafe(48),
        # At the first task the API server imports the modules for task requests, which takes seconds on a busy machine.
        "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "60",
        **{name: os.environ.get(name, value) for name, value in _PACE.items()},
        # By default each part would open a fixed port for its logs on all addresses.
        "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(free_port()),
        "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(free_port()),
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
    }
