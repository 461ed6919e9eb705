"""Runs a window on a standalone Spark cluster, with code in the executors that kills them and notes what they reach."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from binlake.spark_jobs.commands.sparkpackage import build_package_conf, build_package_env, write_package
from deploy.local.ports import HOST
from deploy.local.spark_cluster import SEEN, SparkCluster

CREDENTIALS = {"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any"}
_CONNECTED = "connected"
_RUN_S = 1500
# Every Python process of the executors notes to which addresses it connects.
_NOTER = f"""
import sys

def note(event, args):
    if event == "socket.connect":
        with open("{SEEN}/notes/{_CONNECTED}", "a") as file:
            file.write(f"{{args[1]!r}}\\n")

sys.addaudithook(note)
"""


def run_on_cluster(cluster: SparkCluster, replication: str, folder: Path, code: str) -> dict[str, Counter[str]]:
    """Run a window of `replication`, a TOML text, with executors whose Python runs `code` first.

    Returns how many tasks of each function each executor has done.
    """
    for place in cluster.places:
        (place / "code").mkdir()
        (place / "notes").mkdir()
        (place / "code" / "sitecustomize.py").write_text(code + _NOTER)
    package, home, events = folder / "own.tar", folder / "conf", folder / "events"
    home.mkdir()
    events.mkdir()
    write_package(package)
    conf = build_package_conf(str(package)) | {
        "spark.driver.host": HOST,
        "spark.driver.bindAddress": HOST,
        "spark.executor.memory": "512m",
        "spark.executorEnv.KILLED": f"{SEEN}/notes",
        # No task starts before both executors are registered.
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": events.as_uri(),
        "spark.eventLog.rolling.enabled": "false",
        "spark.eventLog.compress": "false",
    }
    conf["spark.executorEnv.PYTHONPATH"] += f":{SEEN}/code"
    (home / "spark-defaults.conf").write_text("".join(f"{key} {value}\n" for key, value in conf.items()))
    file = folder / "cluster.toml"
    file.write_text(replication)
    done = subprocess.run(
        [sys.executable, "-m", "binlake.spark_jobs.commands.main", "window", "--replication", str(file),
         "--master", cluster.url],
        env={**os.environ, **build_package_env(), "SPARK_CONF_DIR": str(home)},
        cwd=folder, capture_output=True, text=True, timeout=_RUN_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    (log,) = events.iterdir()
    with log.open() as lines:
        return count_tasks(map(json.loads, lines))


def find_notes(cluster: SparkCluster) -> list[Path]:
    """What the code in the executors has noted: a file for each function whose executor was killed, and others."""
    return [path for place in cluster.places for path in (place / "notes").iterdir()]


def read_connected(cluster: SparkCluster) -> set[str]:
    """The addresses to which the executors' Python has connected."""
    files = [path for path in find_notes(cluster) if path.name == _CONNECTED]
    found = {ast.literal_eval(line) for path in files for line in path.read_text().splitlines()}
    return {f"{address[0]}:{address[1]}" for address in found}


def count_tasks(events: Iterable[dict[str, Any]]) -> dict[str, Counter[str]]:
    """From Spark's log: the number of successful tasks by executor, for each Python function."""
    functions: dict[str, set[str]] = {}
    stages: dict[int, set[str]] = {}
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for event in events:
        match event["Event"].rpartition(".")[2]:
            case "SparkListenerSQLExecutionStart":
                functions[str(event["executionId"])] = set(python_functions(event["sparkPlanInfo"]))
            case "SparkListenerJobStart":
                query = functions.get(event.get("Properties", {}).get("spark.sql.execution.id", ""), set())
                for stage in event["Stage Infos"]:
                    by_python = any("InArrow" in rdd.get("Scope", "") for rdd in stage["RDD Info"])
                    stages[stage["Stage ID"]] = query if by_python else set()
            case "SparkListenerTaskEnd" if event["Task End Reason"]["Reason"] == "Success":
                for function in stages[event["Stage ID"]]:
                    found[function][event["Task Info"]["Executor ID"]] += 1
    return found


def python_functions(plan: dict[str, Any]) -> Iterator[str]:
    """The Python functions' names in a plan: `MapInArrow PumpPull(…)`, `FlatMapGroupsInArrow [key, …], <lambda>(…)`."""
    if "InArrow" in plan["nodeName"]:
        yield re.findall(r"([^ (]+)\(", plan["simpleString"])[0]
    for child in plan["children"]:
        yield from python_functions(child)
