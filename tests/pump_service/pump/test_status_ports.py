"""A pump asks only status ports of its own cluster: elsewhere no transaction has a record, which can be a proof."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from binlake.cluster.placement import EtcdClient, NodeRegistry, PdClient
from binlake.cluster.source import TidbSource
from binlake.errors import SourceUnavailable
from binlake.pump_service.pd import PlacementDriver
from binlake.pump_service.pump import clients
from binlake.pump_service.pump.clients import OwnSource
from binlake.pump_service.statusport import StatusServer
from binlake.testkit.captures.capture import Capture
from binlake.testkit.replay.recorded import Outcomes, build_status_server

CAPTURES = Path(__file__).parents[2] / "captures"


@pytest.fixture
def pd(tmp_path: Path) -> Iterator[PlacementDriver]:
    with PlacementDriver(tmp_path / "pd") as driver:
        yield driver


def serve(name: str) -> StatusServer:
    capture = Capture(CAPTURES / name)
    return build_status_server(capture, Outcomes.of(capture), lambda: 1 << 62)


def test_two_clusters_are_not_asked_until_they_are_one(pd: PlacementDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "_CHECK_S", 0.0)
    with (
        closing(PdClient([pd.url])) as clock, closing(EtcdClient([pd.url])) as etcd,
        serve("keys") as one, serve("keys") as same, serve("txn") as other,
        closing(TidbSource(clock, [one.url, same.url])) as right,
        closing(TidbSource(clock, [one.url, other.url])) as wrong,
    ):  # fmt: skip
        registry = NodeRegistry(etcd)
        OwnSource(right, registry, clock).fetch_transaction_status(7, b"key")
        asked = OwnSource(wrong, registry, clock)
        with pytest.raises(SourceUnavailable, match="belong to two TiDB clusters") as refused:
            asked.fetch_transaction_status(7, b"key")
        assert {one.url, other.url} == {refused.value.where["other"], refused.value.where["status-url"]}
        other.stop()
        asked.fetch_transaction_status(7, b"key")
