"""A private Airflow for tests, with its own home and database that are deleted at the end. Import before Airflow."""

from __future__ import annotations

import atexit
import functools
import os
import secrets
import shutil
import sys
import tempfile
from pathlib import Path

from support.memory_disk import memory_disk

_REPOSITORY = Path(__file__).resolve().parents[2]
# Airflow's database and logs; each task of a run commits dozens of times.
_ENOUGH = 1 << 30
SLOW_PACE = {
    "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "300",
    "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "300",
    "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.5",
}
"""Settings for a deployment whose files do not change and whose tests do not depend on tenths of a second."""


@functools.cache
def private_home() -> Path:
    """Point Airflow at a new folder, once per process, and return it.

    A worker of pytest-xdist inherits the environment of a process that may already have a home. Two processes with one
    home would share a database and disturb each other.
    """
    if "airflow" in sys.modules:
        raise RuntimeError("airflow was imported before the tests set its home")
    home = tempfile.mkdtemp(prefix="binlake-airflow-", dir=memory_disk(_ENOUGH))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    os.environ.update(_settings(home))
    return Path(home)


@functools.cache
def migrated_home() -> Path:
    """The private home with a metadata database, made once per process because even checking an existing one takes a
    second.
    """
    home = private_home()
    from airflow.utils.db import initdb

    initdb()
    return home


def _settings(home: str) -> dict[str, str]:
    return {
        "AIRFLOW_HOME": home,
        "AIRFLOW__CORE__DAGS_FOLDER": str(_REPOSITORY / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": "admin:admin,guest:viewer",
        "AIRFLOW__API_AUTH__JWT_SECRET": secrets.token_urlsafe(48),
        "AIRFLOW__API__SECRET_KEY": secrets.token_urlsafe(32),
        "AIRFLOW__LOGGING__LOGGING_LEVEL": "WARNING",
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
    }
