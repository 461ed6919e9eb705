"""Where a demo has its lake and runs the tasks of large windows: on this disk and in one server, or on a cluster."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import httpx

from binlake.spark_jobs.commands.sparkpackage import build_package_conf, build_package_env, write_package
from deploy.local.demo_report import Report
from deploy.local.ports import HOST, free_port
from deploy.local.s3 import S3
from deploy.local.spark_cluster import SparkCluster
from deploy.local.spark_connect import SparkConnect

BUCKET = "binlake"
_CREDENTIALS = {"AWS_ACCESS_KEY_ID": "demo", "AWS_SECRET_ACCESS_KEY": "demo"}
# The smallest that Spark accepts, almost: rows are in Python.
_EXECUTOR_MEMORY = "512m"
_ANSWER_S = 30.0


class Place(Protocol):
    """A lake and a Spark. `starts`: its servers by name, side by side; `ends` stops them."""

    spark: SparkConnect
    env: Mapping[str, str]
    """What processes that read the lake need in their environment."""

    @property
    def starts(self) -> dict[str, Callable[[], object]]:
        """The servers to start, by name."""

    @property
    def ends(self) -> list[Callable[[], object]]:
        """The functions that stop these servers."""

    def render_lake(self, name: str) -> str:
        """The section `[lake]` of a replication file, for the lake `name`."""

    def describe(self, report: Report) -> None:
        """Say where lake and executors are."""

    def show_executors(self, report: Report) -> bool:
        """Say how many tasks each executor has run; false if one that should have run tasks has run none."""


class OneMachine:
    """A folder of this disk, and a Connect server that runs tasks itself."""

    env: Mapping[str, str] = {}

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.spark = SparkConnect(folder / "spark", conf=_build_pages(free_port()))

    @property
    def starts(self) -> dict[str, Callable[[], object]]:
        """As Place."""
        return {"Spark Connect, warm": self.spark.start}

    @property
    def ends(self) -> list[Callable[[], object]]:
        """As Place."""
        return [self.spark.stop]

    def render_lake(self, name: str) -> str:
        """As Place."""
        return f'[lake]\npath = "{self._folder / name}"\n'

    def describe(self, report: Report) -> None:
        """As Place."""
        report.say(f"lake: {self._folder / 'lake'}; tasks of large windows run in the Connect server, local[2]")

    def show_executors(self, report: Report) -> bool:
        """As Place: there is none but the server."""
        del report
        return True


class StoreAndCluster:
    """An object store, and a standalone Spark cluster whose executors have no file of this checkout or demo.

    Credentials are in the environment of this process and of the workers.
    """

    env: Mapping[str, str] = _CREDENTIALS

    def __init__(self, folder: Path, hidden: Path) -> None:
        os.environ.update(_CREDENTIALS)
        self._page = free_port()
        self._package = folder / "spark" / "binlake-spark.tar"
        self._store = S3(folder / "store")
        self._cluster = SparkCluster(folder / "cluster", _CREDENTIALS, hidden=(hidden, folder))
        conf = {
            **_build_pages(self._page),
            **build_package_conf(str(self._package)),
            # Where executors call the server, and where it listens for them.
            "spark.driver.host": HOST,
            "spark.driver.bindAddress": HOST,
            "spark.executor.memory": _EXECUTOR_MEMORY,
            "spark.executor.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        }
        env = build_package_env() | {"SPARK_LOCAL_IP": HOST}
        self.spark = SparkConnect(folder / "spark", master=self._cluster.url, conf=conf, env=env)

    @property
    def starts(self) -> dict[str, Callable[[], object]]:
        """As Place."""
        return {"object store": self._start_store, "Spark cluster and Connect, warm": self._start_spark}

    @property
    def ends(self) -> list[Callable[[], object]]:
        """As Place."""
        return [self._stop_spark, self._store.stop]

    def render_lake(self, name: str) -> str:
        """As Place."""
        return f'[lake]\npath = "s3://{BUCKET}/{name}"\nstorage = {{ endpoint = "{self._store.url}" }}\n'

    def describe(self, report: Report) -> None:
        """As Place."""
        report.say(f"lake: s3://{BUCKET}/lake in the store at {self._store.url}")
        report.say(f"tasks of large windows: {self._cluster.describe()}")

    def show_executors(self, report: Report) -> bool:
        """As Place."""
        executors = self._fetch_executors()
        ran = {one["id"]: one["completedTasks"] for one in executors if one["id"] != "driver"}
        said = ", ".join(f"executor {name} {count}" for name, count in sorted(ran.items()))
        report.say(f"tasks by executor: {said or 'no executor'}")
        return len(ran) >= self._cluster.workers and all(ran.values())

    def _start_store(self) -> None:
        self._store.start()
        self._store.create_bucket(BUCKET)

    def _start_spark(self) -> None:
        self._package.parent.mkdir(parents=True, exist_ok=True)
        write_package(self._package)
        self._cluster.start()
        self.spark.start()

    def _stop_spark(self) -> None:
        self.spark.stop()
        self._cluster.stop()

    def _fetch_executors(self) -> list[dict[str, Any]]:
        url = f"http://{HOST}:{self._page}/api/v1/applications"
        with httpx.Client(trust_env=False, timeout=_ANSWER_S) as client:
            [app] = client.get(url).raise_for_status().json()
            executors: list[dict[str, Any]] = client.get(f"{url}/{app['id']}/executors").raise_for_status().json()
            return executors


def _build_pages(port: int) -> dict[str, str]:
    """Spark's own pages, to which the tasks of the stages and the page of a run link."""
    return {"spark.ui.enabled": "true", "spark.ui.port": str(port)}
