"""The manifests past one machine, rendered by kustomize, and checked as far as that goes without a cluster."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from binlake.config.load import find_replications
from binlake.pump_service.feeder.settings import read_settings

# kubectl is in no package that every machine can install.
pytestmark = pytest.mark.soak

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy" / "kubernetes-cluster"
KUBECTL = shutil.which("kubectl")
Objects = dict[tuple[str, str], dict[str, Any]]


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> Objects:
    """Every object by kind and name, without the hash that kustomize adds to generated names."""
    if KUBECTL is None:
        pytest.fail("kubectl, which renders kustomizations, is missing: install version 1.27 or newer")
    place = tmp_path_factory.mktemp("manifests")
    for name in ("kubernetes", "kubernetes-cluster"):
        shutil.copytree(ROOT / "deploy" / name, place / name)
    (place / "kubernetes" / "secrets.env").write_text("BINLAKE_TARGET_PASSWORD=x\n")
    done = subprocess.run([KUBECTL, "kustomize", str(place / FOLDER.name)], capture_output=True, text=True, check=True)
    objects = list(yaml.safe_load_all(done.stdout))
    found = {(one["kind"], without_hash(one["metadata"]["name"])): one for one in objects}
    assert len(found) == len(objects)
    return found


def without_hash(name: str) -> str:
    return re.sub(r"-[0-9a-z]{10}$", "", name)


def list_pods(rendered: Objects) -> Iterator[tuple[str, dict[str, Any], dict[str, str]]]:
    for (_, name), one in rendered.items():
        template = one.get("spec", {}).get("template")
        if template is not None:
            yield name, template["spec"], template["metadata"]["labels"]


def list_services(rendered: Objects) -> dict[str, dict[str, Any]]:
    return {name: one for (kind, name), one in rendered.items() if kind == "Service"}


def test_no_part_has_the_lake_as_a_volume(rendered: Objects) -> None:
    claims = {name for kind, name in rendered if kind == "PersistentVolumeClaim"}
    assert claims == {"airflow"}
    for name, pod, _ in list_pods(rendered):
        (container,) = pod["containers"]
        mounts = {one["name"]: one["mountPath"] for one in container.get("volumeMounts", ())}
        assert "/var/lib/binlake/lake" not in mounts.values(), name
        assert set(mounts) - {"data"} == {one["name"] for one in pod.get("volumes", ())}, name
    good = find_replications(FOLDER).good
    assert [(one.name, one.lake.path, one.airflow.priority) for one in good.values()] == [
        ("orders", "s3://binlake/lake", 5)
    ]


def test_every_reference_leads_to_an_object(rendered: Objects) -> None:
    outside = {"store", "sources"}  # Secrets that the operator creates
    for name, pod, _ in list_pods(rendered):
        text = yaml.safe_dump(pod)
        for kind, pattern in (
            ("ConfigMap", r"configMap(?:Ref)?:\s+name: (\S+)"),
            ("Secret", r"secretKeyRef:\s+key: \S+\s+name: (\S+)"),
        ):
            for named in map(without_hash, re.findall(pattern, text)):
                assert (kind, named) in rendered or named in outside, (name, kind, named)
    for (kind, name), one in rendered.items():
        selector = one.get("spec", {}).get("selector") if kind in ("Service", "Deployment", "StatefulSet") else None
        if selector:
            wanted = selector.get("matchLabels", selector)
            assert any(wanted.items() <= labels.items() for _, _, labels in list_pods(rendered)), (kind, name)


def test_all_that_needs_the_store_is_told_where_it_is(rendered: Objects) -> None:
    told = {}
    for name, pod, _ in list_pods(rendered):
        named = [
            one["configMapRef"]["name"] for one in pod["containers"][0].get("envFrom", ()) if "configMapRef" in one
        ]
        data = {key: value for ref in named for key, value in rendered["ConfigMap", without_hash(ref)]["data"].items()}
        told[name] = data.get("AWS_ENDPOINT_URL_S3")
    needs = {"api-server", "scheduler", "dag-processor", "triggerer", "spark-connect", "spark-worker"}
    assert {told[name] for name in needs} == {"http://object-store:9000"}


def test_executors_reach_the_driver_and_nobody_else_does(rendered: Objects) -> None:
    conf = dict(line.split() for line in (FOLDER / "spark-defaults.conf").read_text().splitlines() if line)
    driver = list_services(rendered)[conf["spark.driver.host"]]
    ports = {int(conf["spark.driver.port"]), int(conf["spark.driver.blockManager.port"])}
    assert ports < {one["port"] for one in driver["spec"]["ports"]}
    rules = rendered["NetworkPolicy", "spark-connect"]["spec"]["ingress"]
    allowed = {
        (tuple(source["podSelector"]["matchLabels"].items()), port["port"])
        for rule in rules
        for source in rule["from"]
        for port in rule["ports"]
    }
    workers = (("app", "spark-worker"),)
    assert allowed == {((("part-of", "airflow"),), 15002), *((workers, port) for port in ports)}
    (_, worker, _) = next(found for found in list_pods(rendered) if found[0] == "spark-worker")
    master = worker["containers"][0]["args"][-1]
    env = {
        one["name"]: one.get("value")
        for one in rendered["Deployment", "spark-connect"]["spec"]["template"]["spec"]["containers"][0]["env"]
    }
    assert env["SPARK_MASTER"] == master
    host, port = master.removeprefix("spark://").split(":")
    assert int(port) in {one["port"] for one in list_services(rendered)[host]["spec"]["ports"]}
    assert int(conf["spark.executor.cores"]) <= int(worker["containers"][0]["args"][5])


def test_the_monitor_selects_pumps_and_feeder(rendered: Objects) -> None:
    monitor = yaml.safe_load((ROOT / "deploy/kubernetes/monitoring/servicemonitor.yaml").read_text())
    selected = monitor["spec"]["selector"]["matchLabels"].items()
    ports = {one["port"] for one in monitor["spec"]["endpoints"]}
    matched = {
        name: {port["name"] for port in one["spec"]["ports"]}
        for name, one in list_services(rendered).items()
        if selected <= one["metadata"].get("labels", {}).items()
    }
    assert matched == {"pumps": {"pump"}, "tidb": {"metrics"}}
    assert set().union(*matched.values()) <= ports


def test_nothing_runs_as_root_and_servers_are_probed(rendered: Objects) -> None:
    for name, pod, _ in list_pods(rendered):
        (container,) = pod["containers"]
        assert pod["securityContext"]["runAsNonRoot"] is True, name
        assert container["securityContext"]["allowPrivilegeEscalation"] is False, name
        assert name == "airflow-init" or {"livenessProbe", "readinessProbe"} & set(container), name


def test_the_feeder_has_one_writer_that_its_pumps_always_reach(
    rendered: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("BINLAKE_SOURCE_PASSWORD", "BINLAKE_TARGET_PASSWORD"):
        monkeypatch.setenv(name, "x")
    assert rendered["StatefulSet", "feeder"]["spec"]["replicas"] == 1
    assert list_services(rendered)["tidb"]["spec"]["publishNotReadyAddresses"] is True
    settings = read_settings(FOLDER / "feeder.toml")
    assert [source.name for source in settings.source] == ["shard-1"]
