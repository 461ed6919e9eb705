"""`make check-wheel`: builds the wheel, installs it into clean environments, and uses it there as a stranger would.

A host of pumps, with each Python of this machine; an Airflow of another patch version than the locked one; a Spark of
another minor version. Everything is below `.local/wheel`; the environments are removed at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from deploy.local.ports import HOST, free_ports, is_open
from deploy.setup.common import LOCAL, REPOSITORY, SetupError, run
from deploy.setup.jars import Jar, install_jars
from deploy.setup.packages import build_uv_environment, install_uv

FOLDER = LOCAL / "wheel"
PYTHONS = ("3.11", "3.12", "3.13")
TOP = {"binlake", "binlake_airflow"}
"""The only top-level names of an installation."""
OTHER_AIRFLOW = "3.3.1"
OTHER_SPARK = "4.1.3"
OTHER_JARS = (
    Jar(
        "io.delta",
        "delta-spark_4.1_2.13",
        "4.4.0",
        "75a9400986853c061f5109f012547de2545a5759e5e752e5ef633dabe16a4f10",
    ),
    Jar("io.delta", "delta-storage", "4.4.0", "c46735481fa8e326b0957be02b4420cbcab4b325bb08009b7f2045a95133f1cc"),
)
MOST_PUMP_MB = 150
_HEAVY = ("apache-airflow", "pyspark", "pyspark-client", "pandas", "pyarrow", "deltalake")
_PATIENCE_S = 60.0
_AIRFLOW_LOOK = """
import json, sys
from airflow.dag_processing.dagbag import DagBag
from airflow.plugins_manager import get_plugin_info
from airflow.providers_manager import ProvidersManager
bag = DagBag(dag_folder=sys.argv[1])
plugins = [one["name"] for one in get_plugin_info()]
print(json.dumps([sorted(bag.dags), bag.import_errors, plugins, sorted(ProvidersManager().providers)]))
"""
_SPARK_LOOK = """
import sys
from deltalake import DeltaTable
from binlake.spark_jobs.engine.spark import start_classic_session
session = start_classic_session("check", "local[1]")
session.createDataFrame([(1, "a"), (2, "b")], "id long, v string").write.format("delta").save(sys.argv[1])
print(DeltaTable(sys.argv[1]).to_pyarrow_table().num_rows)
"""


class Installation:
    """A clean environment with the wheel: `extra`, and the packages `others` that an existing one already has."""

    def __init__(self, name: str, python: str, wheel: Path, extra: str, *others: str) -> None:
        self.folder = FOLDER / name
        self.bin = self.folder / "bin"
        uv = str(install_uv())
        run([uv, "venv", "--quiet", "--clear", "--python", python, str(self.folder)], env=build_uv_environment())
        self._pip = [uv, "pip"]
        self.run(
            *self._pip,
            "install",
            "--quiet",
            "--python",
            str(self.bin / "python"),
            f"binlake[{extra}] @ {wheel.as_uri()}",
            *others,
        )

    @property
    def megabytes(self) -> float:
        """What the environment takes on the disk."""
        return sum(file.lstat().st_size for file in self.folder.rglob("*") if file.is_file()) / 1e6

    def list_packages(self) -> dict[str, str]:
        """The installed packages with their versions."""
        listed = self.run(*self._pip, "list", "--quiet", "--format", "json", "--python", str(self.bin / "python"))
        return {one["name"]: one["version"] for one in json.loads(listed)}

    def run(self, *command: str | Path, **environment: str) -> str:
        """The output of a program of this installation, away from the checkout. Raises SetupError."""
        return run([str(word) for word in command], FOLDER, self._environment(environment))

    @contextmanager
    def serve(self, port: int, *words: str | Path) -> Iterator[None]:
        """`binlake WORDS` while the block runs, from when it listens on `port`."""
        command = [str(self.bin / "binlake"), *map(str, words)]
        with (FOLDER / f"{words[0]}.log").open("w") as log:
            child = subprocess.Popen(command, cwd=FOLDER, env=self._environment({}), stdout=log, stderr=log)
        try:
            until = time.monotonic() + _PATIENCE_S
            while not is_open(port):
                if child.poll() is not None or time.monotonic() > until:
                    raise SetupError(f"`{' '.join(command)}` does not serve: see {log.name}")
                time.sleep(0.05)
            yield
        finally:
            child.terminate()
            child.wait(_PATIENCE_S)

    def _environment(self, more: dict[str, str]) -> dict[str, str]:
        # Neither this checkout nor its environment may help.
        kept = {
            name: value for name, value in build_uv_environment().items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")
        }
        return {**kept, "PATH": f"{self.bin}{os.pathsep}{os.environ['PATH']}", **more}


def main(arguments: list[str]) -> int:
    """Run the checks that `arguments` name, else all; returns the exit status."""
    parser = argparse.ArgumentParser(prog="deploy.wheel")
    parser.add_argument("checks", nargs="*", metavar="CHECK", help="pump, airflow, spark; default: all")
    parser.add_argument("--constraint", help="constraints of an existing Airflow, a file or a URL")
    args = parser.parse_args(arguments)
    checks = {"pump": check_pumps, "airflow": lambda one: check_airflow(one, args.constraint), "spark": check_spark}
    FOLDER.mkdir(parents=True, exist_ok=True)
    try:
        wheel = build()
        for name in args.checks or checks:
            checks[name](wheel)
    except SetupError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def build() -> Path:
    """Build the wheel; it has only Binlake's packages. Raises SetupError."""
    dist = FOLDER / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    run([str(install_uv()), "build", "--quiet", "--wheel", "-o", str(dist)], REPOSITORY, build_uv_environment())
    (wheel,) = dist.glob("*.whl")
    with zipfile.ZipFile(wheel) as opened:
        names = {name.split("/")[0] for name in opened.namelist()}
    strange = {name for name in names - TOP if not name.endswith(".dist-info")}
    if strange or not names >= TOP:
        raise SetupError(f"the wheel has {', '.join(sorted(names))} at its top")
    print(f"wheel: {wheel.name}, {wheel.stat().st_size / 1e6:.1f} MB", flush=True)
    return wheel


def check_pumps(wheel: Path) -> None:
    """A host of pumps is small, and serves; with each Python that this machine has. Raises SetupError."""
    for version in PYTHONS:
        python = _find_python(version)
        if python is None:
            print(f"pump, Python {version}: not on this machine", flush=True)
            continue
        try:
            _check_pump(wheel, version, python)
        except SetupError as error:
            # No wheel of plyvel yet: the compiler needs LevelDB's headers.
            if version != "3.13" or "plyvel" not in str(error):
                raise
            print("pump, Python 3.13: plyvel has no wheel and cannot be compiled here (libleveldb-dev)", flush=True)


def _check_pump(wheel: Path, version: str, python: str) -> None:
    with _installed("pump", python, wheel, "pump") as host:
        heavy = [name for name in _HEAVY if name in host.list_packages()]
        if heavy or host.megabytes > MOST_PUMP_MB:
            raise SetupError(f"a host of pumps has {host.megabytes:.0f} MB, with {', '.join(heavy) or 'nothing heavy'}")
        pd_port, pump_port = free_ports(2)
        pd = f"http://{HOST}:{pd_port}"
        with ExitStack() as stack:
            data = FOLDER / "data"
            stack.callback(shutil.rmtree, data, ignore_errors=True)
            stack.enter_context(host.serve(pd_port, "pd", "--data-dir", data / "pd", "--addr", f"{HOST}:{pd_port}"))
            words = ("--data-dir", data / "pump", "--addr", f"{HOST}:{pump_port}", "--pd-urls", pd)
            stack.enter_context(host.serve(pump_port, "pump", *words))
            said = host.run(host.bin / "binlake", "pumps", "--pd-urls", pd)
        if "online" not in said:
            raise SetupError(f"the pump does not answer: {said}")
        print(
            f"pump, Python {version}: {host.megabytes:.0f} MB, {len(host.list_packages())} packages; online", flush=True
        )


def check_airflow(wheel: Path, constraint: str | None) -> None:
    """An existing Airflow of another version has the DAGs, the plugin and the provider. Raises SetupError."""
    others = [f"apache-airflow=={OTHER_AIRFLOW}", *(["--constraint", constraint] if constraint else [])]
    with _installed("airflow", _need_python(PYTHONS[0]), wheel, "airflow", *others) as host:
        home, files = FOLDER / "home", FOLDER / "replications"
        for folder in (home / "dags", files):
            folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(REPOSITORY / "replications" / "sample.toml.example", files / "orders.toml")
        host.run(host.bin / "binlake", "airflow", "dags", home / "dags")
        environment = {
            "AIRFLOW_HOME": str(home),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "BINLAKE_REPLICATIONS": str(files),
        }
        said = host.run(host.bin / "python", "-c", _AIRFLOW_LOOK, home / "dags", **environment)
        dags, errors, plugins, providers = json.loads(said.splitlines()[-1])
        if errors or "orders" not in dags or "binlake" not in plugins or "binlake" not in providers:
            raise SetupError(f"Airflow has DAGs {dags}, errors {errors}, plugins {plugins}, providers {providers}")
        print(f"airflow {OTHER_AIRFLOW}: {host.megabytes:.0f} MB; {len(dags)} DAGs, plugin, provider", flush=True)


def check_spark(wheel: Path) -> None:
    """A Spark of another minor version writes a Delta table that delta-rs reads. Raises SetupError."""
    jars = install_jars("wheel-jars", "Delta's jars of another Spark", OTHER_JARS, FOLDER / "jars")
    with _installed("spark", _need_python(PYTHONS[0]), wheel, "spark", f"pyspark=={OTHER_SPARK}") as host:
        table = FOLDER / "table"
        shutil.rmtree(table, ignore_errors=True)
        said = host.run(host.bin / "python", "-c", _SPARK_LOOK, table, BINLAKE_JARS=str(jars))
        if said.splitlines()[-1] != "2":
            raise SetupError(f"Spark {OTHER_SPARK} wrote another table: {said}")
        print(f"spark, pyspark {OTHER_SPARK}: {host.megabytes:.0f} MB; a Delta table written and read", flush=True)


@contextmanager
def _installed(name: str, python: str, wheel: Path, extra: str, *others: str) -> Iterator[Installation]:
    try:
        yield Installation(name, python, wheel, extra, *others)
    finally:
        shutil.rmtree(FOLDER / name, ignore_errors=True)


def _need_python(version: str) -> str:
    python = _find_python(version)
    if python is None:
        raise SetupError(f"Python {version} is not on this machine")
    return python


def _find_python(version: str) -> str | None:
    command = [str(install_uv()), "python", "find", "--quiet", "--no-project", "--no-python-downloads", version]
    pyenv = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    try:
        return run(command, FOLDER, build_uv_environment()).strip()
    except SetupError:
        return str(pyenv[-1]) if pyenv else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
