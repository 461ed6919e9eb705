"""The compose file, as far as it can be checked without Docker: topology, checks, ports, existing commands."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import entry_points, version
from pathlib import Path
from typing import Any

import pytest
import yaml

from binlake.cli import GROUP
from deploy.docker.secrets_file import NAMES, build_lines
from deploy.setup import compose as setup

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "docker-compose.yaml"
AIRFLOW = {"api-server", "scheduler", "dag-processor", "triggerer"}
OURS = {"pump-1", "pump-2", "mariadb", "spark-connect", "postgres", "airflow-init"} | AIRFLOW
# These services end by themselves, so nothing waits for their health.
JOBS = {"airflow-init"}


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    """The file with its anchors resolved."""
    return dict(yaml.safe_load(FILE.read_text(encoding="utf-8")))


@pytest.fixture(scope="module")
def services(compose: dict[str, Any]) -> dict[str, Any]:
    """Its services by name."""
    return dict(compose["services"])


def test_services_are_those_of_a_deployment(services: dict[str, Any]) -> None:
    always = {name for name, service in services.items() if not service.get("profiles")}
    assert always == OURS


@pytest.mark.parametrize("profile", ["embedded", "tidb", "mysql"])
def test_each_profile_has_a_pd_and_a_status_port(services: dict[str, Any], profile: str) -> None:
    names = set()
    for name, service in services.items():
        if profile in service.get("profiles", []):
            aliases = service.get("networks", {}).get("default", {}).get("aliases", [])
            names |= {name, *aliases}
    assert {"pd", "tidb"} <= names


def test_every_server_has_a_health_check(services: dict[str, Any]) -> None:
    without = {name for name, service in services.items() if not service.get("healthcheck", {}).get("test")}
    assert without == JOBS


def test_ports_are_published_only_on_loopback(services: dict[str, Any]) -> None:
    published = [port for service in services.values() for port in service.get("ports", [])]
    assert len(published) >= len(AIRFLOW)
    assert [port for port in published if not port.startswith("127.0.0.1:")] == []


def test_each_service_waits_for_existing_services(services: dict[str, Any]) -> None:
    for name, service in services.items():
        for other, how in service.get("depends_on", {}).items():
            profiles = services[other].get("profiles", [])
            assert not profiles or set(service.get("profiles", [])) <= set(profiles), f"{name} waits for {other}"
            assert how["condition"] != "service_healthy" or "healthcheck" in services[other]


def test_every_volume_is_declared(compose: dict[str, Any]) -> None:
    used = {
        volume.partition(":")[0]
        for service in compose["services"].values()
        for volume in service.get("volumes", [])
        if not volume.startswith((".", "$", "/"))
    }
    assert used == set(compose["volumes"])


def test_every_secret_is_required_and_generated_by_the_script() -> None:
    text = FILE.read_text(encoding="utf-8")
    required = set(re.findall(r"\$\{([A-Z_]+):\?", text))
    assert required == set(NAMES)
    assert [line.partition("=")[0] for line in build_lines()] == list(NAMES)
    assert len({line.partition("=")[2] for line in build_lines() + build_lines()}) == 2 * len(NAMES)
    # The file itself contains nothing that looks like a password.
    assert re.findall(r"PASSWORD: (?!\$\{)\S+", text) == []


def test_airflow_services_share_their_secrets(services: dict[str, Any]) -> None:
    environments = [services[name]["environment"] for name in AIRFLOW]
    assert all(environment == environments[0] for environment in environments)
    assert {"AIRFLOW__CORE__FERNET_KEY", "AIRFLOW__API_AUTH__JWT_SECRET", "AIRFLOW__API__SECRET_KEY"} <= set(
        environments[0]
    )


def test_binlake_commands_are_valid(services: dict[str, Any]) -> None:
    points = {point.name: point for point in entry_points(group=GROUP)}
    seen = set()
    for service in services.values():
        words = service.get("command", [])
        if words and words[0] == "binlake":
            seen.add(words[1])
            command = points[words[1]].load()()
            parser = argparse.ArgumentParser(exit_on_error=False)
            command.add_arguments(parser)
            parser.parse_args([_resolve(word) for word in words[2:]])
    assert seen == {"pd", "pump", "capture", "feeder"}


def test_module_commands_exist(services: dict[str, Any]) -> None:
    modules = [s["command"][2] for s in services.values() if s.get("command", [])[:2] == ["python", "-m"]]
    assert modules
    assert [module for module in modules if importlib.util.find_spec(module) is None] == []


@pytest.mark.airflow
def test_airflow_commands_exist(services: dict[str, Any]) -> None:
    from airflow.cli.cli_parser import get_parser

    parser = get_parser()
    for name in AIRFLOW:
        words = services[name]["command"]
        assert words[0] == "airflow"
        parser.parse_args(words[1:])


def test_secrets_script_needs_no_package() -> None:
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import deploy.docker.secrets_file"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], check=False)
    assert done.returncode == 0


def test_image_installs_the_locked_versions() -> None:
    dockerfile = (ROOT / "deploy/docker/Dockerfile").read_text(encoding="utf-8")
    assert "uv sync --frozen" in dockerfile
    assert "deploy.setup.jars" in dockerfile
    assert "uv pip install" not in dockerfile
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    assert {".venv", ".local", ".env", ".git"} <= set(ignored)


def test_airflow_database_drivers_are_in_the_lock(services: dict[str, Any]) -> None:
    # tests/e2e uses the same scheme with the same packages.
    url = services["scheduler"]["environment"]["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"]
    assert url.startswith("postgresql+psycopg2://")
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert "postgres" in settings["tool"]["uv"]["default-groups"]
    pinned = dict(one.split("==") for one in settings["dependency-groups"]["postgres"])
    assert pinned == {name: version(name) for name in ("psycopg2-binary", "asyncpg")}


def _resolve(word: str) -> str:
    return re.sub(r"\$\{[A-Z_]+:-([^}]*)\}", r"\1", word)


def run_compose(profile: str, *words: str, without: str = "") -> subprocess.CompletedProcess[str]:
    """Run `docker compose config`, which needs no Docker daemon, on the file with all secrets except `without`."""
    program = setup.find_command()
    assert program, "no Docker Compose 2 here: `make setup-tests` installs one"
    secrets = [line.split("=", 1) for line in build_lines() if not line.startswith(f"{without}=")]
    # Without a checkout's `.env`, and without this shell's variables for other projects.
    around = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    calling = [*program, "--env-file", os.devnull, "-f", str(FILE), "--profile", profile, "config", *words]
    return subprocess.run(calling, env={**around, **dict(secrets)}, capture_output=True, text=True, check=False)


@pytest.mark.long
@pytest.mark.parametrize("profile", ["embedded", "tidb", "mysql"])
def test_compose_accepts_the_file(services: dict[str, Any], profile: str) -> None:
    done = run_compose(profile, "--format", "json")
    assert (done.returncode, done.stderr) == (0, "")
    read = json.loads(done.stdout)
    # Compose must read the same as the YAML tests above: the services, their start order and their commands.
    assert set(read["services"]) == {n for n, s in services.items() if profile in s.get("profiles", [profile])}
    for name, service in read["services"].items():
        ours = services[name]
        waits = {other: how["condition"] for other, how in service.get("depends_on", {}).items()}
        assert waits == {other: how["condition"] for other, how in ours.get("depends_on", {}).items()}
        assert service["command"] == ([_resolve(word) for word in ours["command"]] if "command" in ours else None)
        assert {port["host_ip"] for port in service.get("ports", [])} <= {"127.0.0.1"}


@pytest.mark.parametrize("name", NAMES)
def test_compose_refuses_to_start_without_a_secret_and_names_the_remedy(name: str) -> None:
    done = run_compose("embedded", "-q", without=name)
    assert done.returncode != 0
    assert f"{name} is missing a value: see docs/operate/deploy.md" in done.stderr
