"""Which status ports a replication may ask: only those of one feeder, that of its PD."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from binlake.cluster.placement import EtcdClient, Registry
from binlake.cluster.placement.registry import CATALOG
from binlake.cluster.source.catalogs import check_catalogs
from binlake.cluster.source.tidb import StatusPort
from binlake.compare.capture import Capture
from binlake.errors import Permanent
from deploy.local.ports import free_port
from pump_service.pd import PlacementDriver
from pump_service.replay.outcomes import Outcomes
from pump_service.replay.status_server import StatusServer

CAPTURE = Capture(Path(__file__).parents[2] / "captures" / "keys")
FIRST, SECOND = ({"name": name, "cluster_id": "7", "sources": []} for name in ("first", "second"))
SILENT = f"http://127.0.0.1:{free_port()}"

Serve = Callable[[object], str]


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdClient]:
    with PlacementDriver(tmp_path / "pd") as driver, closing(EtcdClient([driver.url])) as client:
        yield client


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts a status port: of a feeder with this page, or of a TiDB if it is None."""
    with ExitStack() as stack:

        def start(page: object) -> str:
            server = StatusServer.of_capture(CAPTURE, Outcomes.of(CAPTURE), lambda: 0)
            if page is not None:
                server.pages = {"/feeder": lambda: (json.dumps(page), "application/json")}
            return stack.enter_context(server).url

        yield start


def check(etcd: EtcdClient, *urls: str) -> None:
    with closing(StatusPort(urls, 2.0)) as port:
        check_catalogs(port, Registry(etcd), 7)


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
