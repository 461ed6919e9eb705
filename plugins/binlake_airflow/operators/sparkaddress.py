"""Where a task finds Spark: the master or the Connect server of an Airflow connection, and the environment."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from airflow.providers.apache.spark.hooks.spark_connect import SparkConnectHook
from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException

from binlake.errors import ConfigError
from binlake_airflow.jobs import MODULE

DRIVER_MEMORY_ENV = "BINLAKE_DRIVER_MEMORY"


def find_spark_master(conn_id: str) -> str:
    """The master of a connection of type `spark`. Raises ConfigError."""
    return str(get_connection(conn_id, "a Spark master").host or "")


def find_connect_url(conn_id: str) -> str:
    """The URL of a connection of type `spark_connect`. Raises ConfigError."""
    get_connection(conn_id, "a Spark Connect server")
    return str(SparkConnectHook(conn_id).get_connection_url())


def find_application_file() -> str:
    """The file of `binlake.spark_jobs.commands.main`, found without importing it. Raises ConfigError."""
    spec = find_spec(MODULE)
    if spec is None or spec.origin is None:
        raise ConfigError(f"module {MODULE} is not installed", hint="install binlake where the tasks run")
    return spec.origin


def get_connection(conn_id: str, what: str) -> Any:
    """The Airflow connection `conn_id`. Raises ConfigError."""
    # The provider's hook would silently take a missing connection for `yarn`.
    try:
        return BaseHook.get_connection(conn_id)
    except AirflowNotFoundException:
        raise ConfigError(
            "the Airflow connection is not defined",
            where={"spark_conn_id": conn_id},
            hint=f"define it as {what}, or set AIRFLOW_CONN_{conn_id.upper()}",
        ) from None


def build_driver_env(local: bool) -> dict[str, str]:
    """The environment that spark-submit needs; `local`: the master runs in its own process."""
    python = {name: os.environ.get(name, sys.executable) for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")}
    # Add the interpreter's folder, so that its spark-submit is found even if the virtual environment is not activated.
    path = os.pathsep.join([os.environ.get("PATH", ""), str(Path(sys.executable).parent)])
    address = {"SPARK_LOCAL_IP": os.environ.get("SPARK_LOCAL_IP", "127.0.0.1")} if local else {}
    return {"PATH": path, **python, **address}
