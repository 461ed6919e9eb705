"""Which status ports a replication may ask: only those of one feeder, that of its PD."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from binlake.cluster.placement import EtcdClient, NodeRegistry
from binlake.cluster.placement.registry import CATALOG
from binlake.cluster.source.catalogs import check_catalogs
from binlake.cluster.source.tidb import StatusPort
from binlake.errors import Permanent
from binlake.pump_service.pd import PlacementDriver
from binlake.testkit.captures.capture import Capture
from binlake.testkit.replay.recorded import Outcomes, build_status_server
from deploy.local.ports import free_port

CAPTURE = Capture(Path(__file__).parents[2] / "captures" / "keys")
FIRST, SECOND = ({"name": name, "cluster_id": "7", "sources": []} for name in ("first", "second"))
SILENT = f"http://127.0.0.1:{free_port()}"

Serve = Callable[..., str]


def read_recorded(capture: str) -> dict[str, Any]:
    """The body of `/info/all` that a TiDB 7.5 gave."""
    answer = json.loads((CAPTURE.path.parent / capture / "http" / "info_all.json").read_text())
    return dict(json.loads(answer["body"]))


ONE, OTHER = read_recorded("ddl"), read_recorded("ddl_late")
BOTH = ONE | {"servers_num": 2, "all_servers_info": ONE["all_servers_info"] | OTHER["all_servers_info"]}


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdClient]:
    with PlacementDriver(tmp_path / "pd") as driver, closing(EtcdClient([driver.url])) as client:
        yield client


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts a status port: of a feeder with this page, or of a TiDB if it is None."""
    with ExitStack() as stack:

        def start(page: object, info: str = "") -> str:
            server = build_status_server(CAPTURE, Outcomes.of(CAPTURE), lambda: 0)
            pages = {
                **({"/feeder": json.dumps(page)} if page is not None else {}),
                **({"/info/all": info} if info else {}),
            }
            server.pages = {path: lambda body=body: (body, "application/json") for path, body in pages.items()}
            return stack.enter_context(server).url

        yield start


def check(etcd: EtcdClient, *urls: str) -> None:
    with closing(StatusPort(urls, 2.0)) as port:
        check_catalogs(port, NodeRegistry(etcd), 7)


def test_one_feeder_or_servers_of_a_tidb_are_accepted(etcd: EtcdClient, serve: Serve) -> None:
    check(etcd, serve(FIRST))
    check(etcd, SILENT, serve(None), serve(None))
    check(etcd, SILENT)
    check(etcd, serve({"all": "paths"}), serve(["what"]))
    etcd.put(CATALOG, b'{"journal": "j", "feeder": "first"}')
    check(etcd, SILENT, serve(FIRST))


@pytest.mark.parametrize("more", [SECOND, None], ids=["feeder", "tidb"])
def test_a_second_catalog_is_refused(etcd: EtcdClient, serve: Serve, more: object) -> None:
    with pytest.raises(Permanent, match=r"names more than the feeder first") as caught:
        check(etcd, serve(FIRST), serve(more))
    assert "one feeder reads several servers" in caught.value.hint


def test_the_second_feeder_is_refused_also_while_the_first_is_down(etcd: EtcdClient, serve: Serve) -> None:
    etcd.put(CATALOG, b'{"journal": "j", "feeder": "first"}')
    with pytest.raises(Permanent, match=r"names more than the feeder first"):
        check(etcd, SILENT, serve(SECOND))


def test_a_feeder_of_another_pd_is_refused(etcd: EtcdClient, serve: Serve) -> None:
    with pytest.raises(Permanent, match="another PD's feeder"):
        check(etcd, serve(FIRST | {"cluster_id": "8"}))


def test_the_second_catalog_is_refused_in_any_order(etcd: EtcdClient, serve: Serve) -> None:
    with pytest.raises(Permanent, match=r"names more than the feeder first"):
        check(etcd, serve(None), serve(FIRST))


@pytest.mark.parametrize(
    ("answers", "of_pd"),
    [
        ([ONE, ONE], []),
        ([ONE, BOTH], []),  # the first has read its PD before the second server started
        ([BOTH, BOTH], [OTHER]),
        ([ONE], [ONE, OTHER]),
        ([ONE, {"no": "servers"}], [ONE]),
        ([{"all_servers_info": None}, ONE], []),
    ],
)
def test_servers_of_one_cluster_are_accepted(
    etcd: EtcdClient, serve: Serve, answers: Sequence[dict[str, Any]], of_pd: Sequence[dict[str, Any]]
) -> None:
    register(etcd, *of_pd)
    check(etcd, SILENT, *(serve(None, json.dumps(answer)) for answer in answers))


def test_servers_of_two_clusters_are_refused(etcd: EtcdClient, serve: Serve) -> None:
    """Recorded answers of two TiDB clusters: each server lists those of its own cluster."""
    urls = [serve(None, json.dumps(answer)) for answer in (ONE, ONE, OTHER)]
    with pytest.raises(Permanent, match="belong to two TiDB clusters") as caught:
        check(etcd, *urls)
    where = {"status-url": urls[2], "servers": OTHER["owner_id"], "other": urls[0], "its_servers": ONE["owner_id"]}
    assert caught.value.where == where
    assert "ports of one TiDB cluster" in caught.value.hint


def test_a_server_of_another_cluster_than_the_pd_is_refused(etcd: EtcdClient, serve: Serve) -> None:
    register(etcd, OTHER)
    with pytest.raises(Permanent, match="does not belong to the PD's TiDB cluster") as caught:
        check(etcd, serve(None, json.dumps(ONE)))
    assert (caught.value.where["servers"], caught.value.where["pd_servers"]) == (ONE["owner_id"], OTHER["owner_id"])


def test_a_server_that_starts_again_between_two_questions_is_accepted(etcd: EtcdClient) -> None:
    """It has another id then, under which its cluster's other servers see it."""
    answers = iter([json.dumps(ONE), json.dumps(OTHER)])
    register(etcd, OTHER)
    server = build_status_server(CAPTURE, Outcomes.of(CAPTURE), lambda: 0)
    server.pages = {"/info/all": lambda: (next(answers), "application/json")}
    with server:
        check(etcd, server.url)


def register(etcd: EtcdClient, *answers: dict[str, Any]) -> None:
    """Servers as they register at PD."""
    for answer in answers:
        for server, info in answer["all_servers_info"].items():
            etcd.put(f"/tidb/server/info/{server}".encode(), json.dumps(info).encode())
