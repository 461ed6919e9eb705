"""Fixtures of the Airflow shell's tests."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from support.airflow_dags import register_dag
from support.airflow_home import migrated_home, private_home
from support.replication_files import write_replication

private_home()


@pytest.fixture(scope="session")
def airflow_db() -> Path:
    """A migrated metadata database in the private home, which it returns."""
    return migrated_home()


@pytest.fixture(scope="session")
def server(airflow_db: Path) -> Iterator[httpx.Client]:
    """A client of Airflow's API server on a local port, with the plugin loaded by its entry point."""
    assert (airflow_db / "airflow.db").is_file()
    import uvicorn
    from airflow.api_fastapi.app import create_app

    serving = uvicorn.Server(uvicorn.Config(create_app(), host="127.0.0.1", port=0, log_level="warning"))
    thread = threading.Thread(target=serving.run, daemon=True)
    thread.start()
    try:
        while not serving.started:
            assert thread.is_alive(), "the API server has ended"
            thread.join(0.05)
        port = serving.servers[0].sockets[0].getsockname()[1]
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            yield client
    finally:
        serving.should_exit = True
        thread.join(30)


@pytest.fixture(scope="session")
def token(server: httpx.Client) -> str:
    """A token of the user admin, obtained as a user does."""
    from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager

    passwords = json.loads(Path(SimpleAuthManager.get_generated_password_file()).read_text())
    answer = server.post("/auth/token", json={"username": "admin", "password": passwords["admin"]})
    assert answer.status_code == 201
    return str(answer.json()["access_token"])


@pytest.fixture
def bearer(token: str) -> dict[str, str]:
    """The Authorization header of a login."""
    return {"Authorization": f"Bearer {token}"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of replications that the shell reads."""
    place = tmp_path / "replications"
    place.mkdir()
    monkeypatch.setenv("BINLAKE_REPLICATIONS", str(place))
    return place


@pytest.fixture
def known_dag(folder: Path) -> str:
    """The DAG `asked` as the scheduler knows it: paused, whatever an earlier test did to it."""
    return register_dag(write_replication(folder, "asked"), paused=True)
