"""A standalone Spark cluster on this machine: a master and workers, each with a folder of its own.

Where the kernel allows it, a worker and its executors see neither this checkout nor the driver's files: empty folders
hide these in a mount namespace of theirs. So whatever they use has come with the job, or is in Spark.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import httpx
import pyspark

from deploy.local.ports import HOST, free_ports, is_open
from deploy.local.process import Child

START_S = 180.0
ROOT = Path(__file__).resolve().parents[2]
SEEN = Path("/mnt")
"""A worker's folder, as a worker in a namespace sees it."""
_SPARK = Path(pyspark.__file__).parent
_SYSTEM = ("/usr/local/bin", "/usr/bin", "/bin")
# Servers that only pass messages.
_DAEMON = {"SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"}
# The worker's folder becomes /mnt, with the installed Spark; then what follows is hidden.
_HIDE = """
mount --bind "$1" /mnt && mount --bind "$2" /mnt/spark && cd /mnt && shift 2 || exit 1
while [ "$1" != -- ]; do if [ -d "$1" ]; then mount -t tmpfs none "$1" || exit 1; fi; shift; done
shift; exec "$@"
"""


class SparkCluster:
    """A master and `workers` workers with one core each below `folder`; `hidden`: the folders of the driver.

    `env`: what the executors' machines have in their environment, such as credentials of an object store.
    """

    def __init__(
        self, folder: Path, env: dict[str, str], *, workers: int = 2, hidden: Sequence[Path] = (ROOT,)
    ) -> None:
        self.folder = folder.resolve()
        self._port, self._page = free_ports(2)
        self._hidden = [str(path.resolve()) for path in hidden]
        words = ["--host", HOST, "--port", str(self._port), "--webui-port", str(self._page)]
        master = [*self._clean({}), str(_SPARK / "bin/spark-class"), "org.apache.spark.deploy.master.Master", *words]
        self._master = Child("spark-master", master, self.folder, cwd=self.folder)
        self._workers = [self._build_worker(number, env) for number in range(1, workers + 1)]

    @property
    def url(self) -> str:
        """The master, as Spark's drivers name it."""
        return f"spark://{HOST}:{self._port}"

    @property
    def places(self) -> list[Path]:
        """The folder of each worker, as this process sees it."""
        return [worker.folder / worker.name for worker in self._workers]

    @property
    def workers(self) -> int:
        """The number of its workers."""
        return len(self._workers)

    def describe(self) -> str:
        """What it is, for people."""
        sees = " and without sight of the checkout and of this folder" if can_hide() else ""
        return f"{self.url}, {self.workers} workers, each in a folder of its own{sees}"

    def start(self) -> SparkCluster:
        """Start it, and return when all workers are registered. Raises ProcessError."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._master.start().wait_until(lambda: is_open(self._port) and is_open(self._page), START_S)
        for place, worker in zip(self.places, self._workers, strict=True):
            _build_home(place)
            worker.start()
        for worker in self._workers:
            worker.wait_until(lambda: self._count_alive() == self.workers, START_S)
        return self

    def stop(self) -> None:
        """Stop its servers and their executors."""
        with ThreadPoolExecutor(1 + self.workers) as pool:
            list(pool.map(Child.stop, [*self._workers, self._master]))

    def __enter__(self) -> SparkCluster:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _build_worker(self, number: int, env: dict[str, str]) -> Child:
        name = f"spark-worker-{number}"
        place = self.folder / name
        home = SEEN if can_hide() else place
        own = {"SPARK_HOME": f"{home}/spark", "SPARK_LOCAL_DIRS": f"{home}/scratch", "SPARK_IDENT_STRING": name}
        words = ["--host", HOST, "--webui-port", "0", "--cores", "1", "--memory", "1g", "--work-dir", f"{home}/work"]
        java = [f"{home}/spark/bin/spark-class", "org.apache.spark.deploy.worker.Worker", *words, self.url]
        command = [*self._clean(own | env), *java]
        if can_hide():
            command = [*_unshare(), _HIDE, name, str(place), str(_SPARK), *self._hidden, "--", *command]
        return Child(name, command, self.folder, cwd=self.folder)

    def _clean(self, env: dict[str, str]) -> list[str]:
        """A command prefix: the environment of another machine, which has Java and Python."""
        here = {"PATH": os.pathsep.join(_list_programs()), "HOME": "/tmp", "SPARK_LOCAL_IP": HOST, **_DAEMON, **env}
        if java := os.environ.get("JAVA_HOME"):
            here["JAVA_HOME"] = java
        return ["env", "-i", *(f"{name}={value}" for name, value in here.items())]

    def _count_alive(self) -> int:
        answer = httpx.get(f"http://{HOST}:{self._page}/json/", trust_env=False, timeout=START_S)
        # While the master starts, its page answers with an error or with nothing.
        workers = answer.json()["workers"] if answer.content.startswith(b"{") else []
        return sum(one["state"] == "ALIVE" for one in workers)


@cache
def can_hide() -> bool:
    """Whether this kernel and account allow a mount namespace."""
    try:
        tried = subprocess.run([*_unshare(), "mount -t tmpfs none /mnt"], capture_output=True, check=False)
    except FileNotFoundError:
        return False
    return tried.returncode == 0


def _unshare() -> list[str]:
    as_root = [] if os.geteuid() == 0 else ["--map-root-user"]
    return ["unshare", *as_root, "--mount", "sh", "-c"]


def _build_home(place: Path) -> None:
    for name in ("work", "scratch"):
        (place / name).mkdir(parents=True, exist_ok=True)
    if can_hide():
        (place / "spark").mkdir(exist_ok=True)
    else:
        (place / "spark").symlink_to(_SPARK)


def _list_programs() -> list[str]:
    """The folders of Java, of the Python from which this environment was made, and of the system's programs."""
    java = shutil.which("java")
    return list(dict.fromkeys([f"{sys.base_prefix}/bin", *([str(Path(java).parent)] if java else []), *_SYSTEM]))
