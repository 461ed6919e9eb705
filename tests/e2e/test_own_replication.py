"""docs/start/own-replication.md: its files and commands, executed as written between two private servers.

Once with this checkout, under Airflow too; once as a stranger does, with the wheel in a clean environment and pip.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from support.mariadb import MariaDb, execute, mariadb_in_memory, rows

from deploy import wheel
from deploy.local.ports import free_ports, is_open
from deploy.local.process import Child

pytestmark = [pytest.mark.soak, pytest.mark.mariadb, pytest.mark.e2e]
ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "start" / "own-replication.md").read_text(encoding="utf-8")
SECRETS = {"SOURCE_PASSWORD": "source-secret", "TARGET_PASSWORD": "target-secret"}
_PATIENCE_S = 120.0


class Reader:
    """Does what the page says, with the Python `python`, and other ports and folders than those on the page."""

    def __init__(self, folder: Path, source: MariaDb, target: MariaDb, python: str = sys.executable) -> None:
        self.folder = folder
        self._binlake = (python, "-m", "binlake.cli")
        self.ports = dict(zip((2379, 8250, 10080), free_ports(3), strict=True))
        self._servers = {"old.example.org": source, "new.example.org": target}
        users = self.list_blocks("sql", "## Users")
        for server, statements in zip(self._servers.values(), users, strict=True):
            for statement in filter(str.strip, statements.split(";\n")):
                execute(server, statement)
        for name, text in zip(("feeder.toml", "orders.toml"), self.list_blocks("toml", "## Files"), strict=True):
            (folder / name).write_text(text, encoding="utf-8")

    def list_blocks(self, kind: str, heading: str) -> list[str]:
        """The page's blocks of `kind` below `heading`, with this reader's addresses."""
        section = PAGE[PAGE.index(heading) :].partition("\n## ")[0]
        return [self._adapt(block) for block in re.findall(rf"```{kind}\n(.*?)```", section, re.DOTALL)]

    def list_commands(self, heading: str) -> list[list[str]]:
        """The `binlake` commands below `heading`."""
        (block,) = self.list_blocks("", heading)
        return [line.split()[1:] for line in block.splitlines() if line.startswith("binlake ")]

    def run(self, *words: str) -> str:
        """The output of `binlake WORDS`, which succeeds."""
        command = [*self._binlake, *words]
        env = {name: value for name, value in {**os.environ, **SECRETS}.items() if name != "PYTHONPATH"}
        done = subprocess.run(command, cwd=self.folder, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def run_under_airflow(self) -> None:
        """Do what the page says under its heading, and run the DAG once, as its schedule would."""
        home = self.folder / "airflow"
        # No password: Airflow's connection has it.
        env = {**os.environ, "AIRFLOW_HOME": str(home), "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
               "BINLAKE_REPLICATIONS": str(home / "replications"),  # an installed package's default
               "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}  # fmt: skip
        for name in ("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "AIRFLOW__CORE__DAGS_FOLDER"):
            env.pop(name, None)
        (block,) = self.list_blocks("", "## Under Airflow")
        *lines, unpause = block.strip().splitlines()
        # What a running Airflow does by itself.
        lines = ["airflow db migrate", *lines, "airflow dags reserialize", unpause, "airflow dags test orders"]
        done = subprocess.run(
            ["bash", "-euc", "\n".join(lines)], cwd=self.folder, env=env, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]

    @contextmanager
    def serve(self) -> Iterator[None]:
        """Run the page's three services."""
        with ExitStack() as stack:
            for words, port in zip(self.list_commands("## Three services"), self.ports.values(), strict=True):
                command = ["env", "-C", str(self.folder), *self._binlake, *words]
                child = Child(words[0], command, self.folder, env=SECRETS)
                stack.callback(child.stop)
                child.start().wait_until(lambda port=port: is_open(port), _PATIENCE_S)
            yield

    def _adapt(self, text: str) -> str:
        for name, server in self._servers.items():
            text = text.replace(f'host = "{name}"\nport = 3306', f'host = "{server.host}"\nport = {server.port}')
        for old, new in self.ports.items():
            text = text.replace(f"127.0.0.1:{old}", f"127.0.0.1:{new}")
        return text.replace("/var/lib/binlake/lake", str(self.folder / "lake"))


@contextmanager
def two_servers() -> Iterator[tuple[MariaDb, MariaDb]]:
    """A source with the table that the page uses, and an empty target."""
    with mariadb_in_memory(MariaDb.list_source_options()) as source, mariadb_in_memory() as target:
        execute(source, "CREATE DATABASE shop")
        execute(source, "CREATE TABLE shop.orders (id INT PRIMARY KEY, state VARCHAR(20))")
        execute(source, "INSERT INTO shop.orders VALUES (1, 'new'), (2, 'paid')")
        yield source, target


def test_stranger_installs_the_wheel_by_pip_and_has_the_first_rows(tmp_path: Path) -> None:
    built = wheel.build()
    began = time.monotonic()
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    extras = f"binlake[pump,feeder,lake] @ {built.as_uri()}"
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run([python, "-m", "pip", "install", "--quiet", extras], cwd=tmp_path, env=env, check=True)
    installed = time.monotonic()
    with two_servers() as (source, target):
        reader = Reader(tmp_path, source, target, str(python))
        with reader.serve():
            for words in reader.list_commands("## The first windows"):
                reader.run(*words)
            everything = "SELECT * FROM shop.orders ORDER BY id"
            assert rows(target, everything) == rows(source, everything)
            print(f"installed in {installed - began:.0f} s, first rows after {time.monotonic() - installed:.0f} s more")


def test_page_replicates_a_mariadb(tmp_path: Path) -> None:
    with two_servers() as (source, target):
        reader = Reader(tmp_path, source, target)
        with reader.serve():
            for words in reader.list_commands("## The first windows"):
                reader.run(*words)
            everything = "SELECT * FROM shop.orders ORDER BY id"
            assert rows(target, everything) == rows(source, everything)

            execute(source, "UPDATE shop.orders SET state = 'sent' WHERE id = 1")
            end = time.monotonic() + _PATIENCE_S
            while rows(target, everything) != rows(source, everything):
                assert time.monotonic() < end
                reader.run(*words)
            execute(source, "INSERT INTO shop.orders VALUES (3, 'by airflow')")
            reader.run_under_airflow()
            assert rows(target, everything) == rows(source, everything)
        audit = re.search(r"`binlake (audit row .*?)`", PAGE)
        assert audit is not None
        said = reader.run(*audit[1].split())
        assert all(word in said for word in ("insert", "new", "update", "sent"))
