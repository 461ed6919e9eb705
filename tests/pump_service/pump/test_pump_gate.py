"""Who may command a pump: Binlake's own commands need the token or a client certificate; binlogctl's stay open."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import httpx
import pytest
from pump_cluster import MemoryCluster
from pump_helpers import MakePump, prewrite, until
from support.certificates import Authority
from support.pump_calls import write_binlog

from binlake.errors import ConfigError
from binlake.pump_service.pump.config import TlsFiles
from binlake.pump_service.pump.server import PumpServer
from binlake.pump_service.pump.service import State

FOREIGN = {"origin": "http://evil.example", "sec-fetch-site": "cross-site"}


def put(pump: PumpServer, path: str, **headers: str) -> httpx.Response:
    return httpx.put(
        f"http://{pump.addr}{path}", headers={k.replace("_", "-"): v for k, v in headers.items()}, timeout=60
    )


def waiting_prewrite(pump: PumpServer, cluster: MemoryCluster) -> int:
    start_ts = cluster.fetch_ts()
    stored = write_binlog(pump.service, cluster.id, prewrite(start_ts).SerializeToString())
    assert stored is not None
    stored.result(60)
    until(lambda: pump.service.build_info().unmatched_prewrites == 1, "it waits")
    return start_ts


def test_deciding_a_transaction_requires_the_token(build_pump: MakePump, cluster: MemoryCluster) -> None:
    #
    pump = build_pump()
    start_ts = waiting_prewrite(pump, cluster)
    file = pump._config.data_dir / "admin-token"
    token = file.read_text().strip()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert len(token) == 64
    for path in (f"/txn/{start_ts}/rollback", f"/txn/{start_ts}/commit/{cluster.fetch_ts()}"):
        for shown in ({}, {"authorization": "Bearer x"}, {"authorization": token}):
            answer = put(pump, path, **shown)
            assert answer.status_code == 403
            assert str(file) in answer.json()["message"]
    foreign = put(pump, f"/txn/{start_ts}/rollback", authorization=f"Bearer {token}", **FOREIGN)
    assert foreign.status_code == 403
    assert pump.service.build_info().unmatched_prewrites == 1
    assert put(pump, f"/txn/{start_ts}/rollback", authorization=f"Bearer {token}").json()["code"] == 200
    until(lambda: pump.service.build_info().unmatched_prewrites == 0, "the rollback is sorted")
    file.write_text("another\n")  # takes effect at once
    assert put(pump, f"/txn/{start_ts}/rollback", authorization=f"Bearer {token}").status_code == 403
    assert put(pump, f"/txn/{start_ts}/rollback", authorization="Bearer another").json()["code"] == 3


@pytest.mark.parametrize("headers", [FOREIGN, {"origin": "null"}, {"sec_fetch_site": "same-site"}])
def test_requests_from_another_sites_page_are_refused(build_pump: MakePump, headers: dict[str, str]) -> None:
    pump = build_pump()
    assert put(pump, f"/state/{pump.node_id}/close", **headers).status_code == 403
    names = {k.replace("_", "-"): v for k, v in headers.items()}
    assert httpx.post(f"http://{pump.addr}/debug/gc/trigger", headers=names, timeout=60).status_code == 403
    assert pump.service.state is State.ONLINE
    assert httpx.get(f"http://{pump.addr}/status", headers=names, timeout=60).status_code == 200


def test_binlogctl_commands_stay_open(build_pump: MakePump) -> None:
    # S0-60
    pump = build_pump()
    own = put(pump, f"/state/{pump.node_id}/pause", origin=f"http://{pump.addr}", sec_fetch_site="same-origin")
    assert own.json() == {"message": "apply action pause success!", "code": 200, "data": None}
    assert put(build_pump("pump2"), "/state/pump2/pause").json()["code"] == 200


def test_an_operator_may_require_the_token_for_them_too(build_pump: MakePump) -> None:
    pump = build_pump(protect_state=True)
    assert put(pump, f"/state/{pump.node_id}/pause").status_code == 403
    token = (pump._config.data_dir / "admin-token").read_text().strip()
    assert put(pump, f"/state/{pump.node_id}/pause", authorization=f"Bearer {token}").json()["code"] == 200


def test_a_client_certificate_is_accepted_and_a_unix_socket_without_one_is_not(
    build_pump: MakePump, cluster: MemoryCluster, tmp_path: Path, short_path: Path
) -> None:
    authority = Authority(tmp_path)
    own, operator = authority.tls("pump"), authority.tls("operator")
    tls = TlsFiles(str(own.ca), str(own.cert), str(own.key))
    pump = build_pump(addr="localhost:0", tls=tls, socket=str(short_path / "pump.sock"), protect_state=True)
    start_ts = waiting_prewrite(pump, cluster)
    transport = httpx.HTTPTransport(uds=str(short_path / "pump.sock"))
    with httpx.Client(transport=transport, timeout=60) as local:
        assert local.put(f"http://pump/txn/{start_ts}/rollback").status_code == 403
    with httpx.Client(verify=operator.build_client_context(), timeout=60) as client:
        assert client.put(f"https://{pump.addr}/txn/{start_ts}/rollback").json()["code"] == 200
        foreign = client.put(f"https://{pump.addr}/state/{pump.node_id}/close", headers=FOREIGN)
        assert foreign.status_code == 403
    assert pump.service.state is State.ONLINE


def test_a_token_that_cannot_be_saved_stops_the_start(build_pump: MakePump, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the token for commands cannot be saved") as caught:
        build_pump(admin_token_file=str(tmp_path / "nosuch" / "token"))
    assert "admin-token-file" in json.dumps(str(caught.value))
