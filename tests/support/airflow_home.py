"""A private Airflow for tests: its own home and database, thrown away at the end; must come before Airflow's import."""

from __future__ import annotations

import atexit
import os
import secrets
import shutil
import sys
import tempfile
from pathlib import Path

_REPOSITORY = Path(__file__).resolve().parents[2]
_MARK = "BINLAKE_TEST_AIRFLOW_HOME"


def private_home() -> Path:
    """Point Airflow at a new folder (once a process) and return it."""
    if _MARK not in os.environ:
        if "airflow" in sys.modules:
            raise RuntimeError("airflow was imported before its test home was set")
        home = tempfile.mkdtemp(prefix="binlake-airflow-")
        atexit.register(shutil.rmtree, home, ignore_errors=True)
        os.environ.update(_settings(home))
    return Path(os.environ[_MARK])


def _settings(home: str) -> dict[str, str]:
    return {
        _MARK: home,
        "AIRFLOW_HOME": home,
        "AIRFLOW__CORE__DAGS_FOLDER": str(_REPOSITORY / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": "admin:admin,guest:viewer",
        "AIRFLOW__API_AUTH__JWT_SECRET": secrets.token_urlsafe(48),
        "AIRFLOW__API__SECRET_KEY": secrets.token_urlsafe(32),
        "AIRFLOW__LOGGING__LOGGING_LEVEL": "WARNING",
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
    }
