"""The example manifests, as far as they can be checked without a cluster: consistent, and equal to the compose file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from binlake.config import load_replication
from deploy.docker.secrets_file import NAMES

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy" / "kubernetes"
AIRFLOW = ("api-server", "scheduler", "dag-processor", "triggerer")


@pytest.fixture(scope="module")
def manifests() -> dict[tuple[str, str], dict[str, Any]]:
    """Every object by kind and name."""
    listed = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())["resources"]
    objects = [one for name in listed for one in yaml.safe_load_all((FOLDER / name).read_text())]
    found = {(one["kind"], one["metadata"]["name"]): one for one in objects}
    assert len(found) == len(objects)
    return found


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    """The services of the compose file."""
    return dict(yaml.safe_load((ROOT / "docker-compose.yaml").read_text())["services"])


def pods(manifests: dict[tuple[str, str], dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    for (_, name), one in manifests.items():
        if "template" in one.get("spec", {}):
            yield name, one["spec"]["template"]["spec"]


def container(manifests: dict[tuple[str, str], dict[str, Any]], wanted: str) -> dict[str, Any]:
    return next(dict(one["containers"][0]) for name, one in pods(manifests) if name == wanted)


def names_of_options(words: list[str]) -> list[str]:
    return [word.partition("=")[0] for word in words]


def test_every_file_of_the_folder_is_used(manifests: dict[tuple[str, str], dict[str, Any]]) -> None:
    listed = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())["resources"]
    assert {path.name for path in FOLDER.glob("*.yaml")} == {*listed, "kustomization.yaml"}
    assert {name for name, _ in pods(manifests)} == {"pump", "spark-connect", "airflow-init", *AIRFLOW}


@pytest.mark.parametrize(
    ("here", "there"),
    [("pump", "pump-1"), ("spark-connect", "spark-connect"), *((name, name) for name in AIRFLOW)],
)
def test_commands_equal_those_of_the_compose_file(
    manifests: dict[tuple[str, str], dict[str, Any]], services: dict[str, Any], here: str, there: str
) -> None:
    words = container(manifests, here)["args"]
    assert names_of_options(words) == names_of_options(services[there]["command"])
    # The tests of the compose file check that Binlake and Airflow accept these commands.
    assert words[:2] == services[there]["command"][:2]


def test_airflow_settings_equal_those_of_the_compose_file(
    manifests: dict[tuple[str, str], dict[str, Any]], services: dict[str, Any]
) -> None:
    shared = manifests["ConfigMap", "airflow"]["data"]
    for name in AIRFLOW:
        own = {one["name"] for one in container(manifests, name)["env"]}
        wanted = services[name]["environment"]
        assert set(wanted) == (set(shared) | own) - {"AIRFLOW_DB_PASSWORD"}
        assert {key: wanted[key] for key in shared} == shared


def test_all_secrets_come_from_one_secret_object(manifests: dict[tuple[str, str], dict[str, Any]]) -> None:
    asked = {
        one["valueFrom"]["secretKeyRef"]["key"]
        for _, pod in pods(manifests)
        for one in pod["containers"][0].get("env", ())
        if "secretKeyRef" in one.get("valueFrom", {})
    }
    assert asked == set(NAMES)
    assert "deploy/kubernetes/secrets.env" in (ROOT / ".gitignore").read_text()
    assert "Secret" not in {kind for kind, _ in manifests}


def test_mounted_and_selected_objects_exist(manifests: dict[tuple[str, str], dict[str, Any]]) -> None:
    labels = [
        one["spec"]["template"]["metadata"]["labels"] for one in manifests.values() if "template" in one.get("spec", {})
    ]
    for (kind, name), one in manifests.items():
        selector = one["spec"].get("selector", {}) if "spec" in one else {}
        wanted = selector.get("matchLabels", selector)
        assert not wanted or any(wanted.items() <= each.items() for each in labels), f"{kind} {name}"
    generated = {"replications"}
    for name, pod in pods(manifests):
        volumes = {one["name"]: one for one in pod.get("volumes", ())}
        claims = {one["persistentVolumeClaim"]["claimName"] for one in volumes.values() if "configMap" not in one}
        assert claims <= {key for kind, key in manifests if kind == "PersistentVolumeClaim"}
        assert {one["configMap"]["name"] for one in volumes.values() if "configMap" in one} <= generated
        mounts = {one["name"] for one in pod["containers"][0]["volumeMounts"]}
        assert mounts == set(volumes) or name == "pump"


def test_nothing_runs_as_root_and_servers_are_probed(manifests: dict[tuple[str, str], dict[str, Any]]) -> None:
    for name, pod in pods(manifests):
        (one,) = pod["containers"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert one["securityContext"]["allowPrivilegeEscalation"] is False
        assert name == "airflow-init" or {"livenessProbe", "readinessProbe"} & set(one)


def test_pump_probe_needs_an_answer_and_memory_fits_the_largest_binlog(
    manifests: dict[tuple[str, str], dict[str, Any]],
) -> None:
    # An open port does not prove that a pump answers. Writing or pulling a binlog takes twice its size (measured: 94
    # MiB, 352 with one of 128, 608 with one of 256), and one may have 2 GiB.
    pump = container(manifests, "pump")
    paths = {"startupProbe": "/healthz", "readinessProbe": "/readyz", "livenessProbe": "/healthz"}
    assert {name: pump[name]["httpGet"]["path"] for name in paths} == paths
    ports = {one["name"]: one["containerPort"] for one in pump["ports"]}
    assert {ports[pump[name]["httpGet"]["port"]] for name in paths} == {8250}
    assert int(pump["resources"]["limits"]["memory"].removesuffix("Gi")) >= 2 * 2 + 1


def test_monitor_selects_the_pumps_and_a_port_that_serves_metrics(
    manifests: dict[tuple[str, str], dict[str, Any]],
) -> None:
    folder = FOLDER / "monitoring"
    listed = yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]
    assert {path.name for path in folder.glob("*.yaml")} == {*listed, "kustomization.yaml"}
    monitor = yaml.safe_load((folder / "servicemonitor.yaml").read_text())
    selected = monitor["spec"]["selector"]["matchLabels"].items()
    services = [one for (kind, _), one in manifests.items() if kind == "Service"]
    matched = {
        one["metadata"]["name"]: {port["name"] for port in one["spec"]["ports"]}
        for one in services
        if selected <= one["metadata"].get("labels", {}).items()
    }
    assert list(matched) == ["pumps"]
    endpoints = {one["port"]: one["path"] for one in monitor["spec"]["endpoints"]}
    assert matched["pumps"] <= set(endpoints)
    assert set(endpoints.values()) == {"/metrics"}  # the pump's page is read at this path: test_pump_pages.py


def test_sample_replication_is_valid() -> None:
    found = load_replication(FOLDER / "orders.toml", secrets=False)
    assert found.target is not None
    assert found.target.password == "env:BINLAKE_TARGET_PASSWORD"
