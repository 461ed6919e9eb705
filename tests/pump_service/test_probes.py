"""`/healthz` and `/readyz` of each service: red while it cannot do its work, with the reason; green again by itself."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from support.fulldisk import files_of_at_most

from binlake import tso
from binlake.cluster.placement import EtcdClient, PdClient
from binlake.errors import BinlakeError, Permanent, SourceUnavailable
from binlake.pump_service.monitoring import Probes, find_no_reason
from binlake.pump_service.pd import PlacementDriver
from binlake.testkit.captures.capture import Capture
from binlake.testkit.replay.recorded import Outcomes, build_status_server

CAPTURE = Path(__file__).resolve().parents[1] / "captures" / "keys"


def probe(url: str, path: str) -> tuple[int, str]:
    answer = httpx.get(f"{url}/{path}", trust_env=False)
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    return answer.status_code, answer.text


def test_ready_needs_health_and_reasons_stay_lines() -> None:
    probes = Probes(lambda: ["broken\x1b[31m"], lambda: ["no <b>source</b>\nok", "broken\x1b[31m"])
    assert probes.answer("/healthz") == (503, "broken\\u001b[31m\n")
    assert probes.answer("/readyz") == (503, "broken\\u001b[31m\nno <b>source</b>\\u000aok\n")
    assert Probes(find_no_reason, find_no_reason).answer("/readyz") == (200, "ok\n")
    assert probes.answer("/readyz/") is None


@pytest.fixture
def pd(tmp_path: Path) -> Iterator[PlacementDriver]:
    with PlacementDriver(tmp_path / "pd", status_addr="127.0.0.1:0") as driver:
        yield driver


def test_a_placement_driver_whose_disk_fails_is_not_ready_until_it_can_save_again(
    pd: PlacementDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    from binlake.pump_service.pd import oracle

    assert (probe(pd.status_url, "healthz"), probe(pd.status_url, "readyz")) == ((200, "ok\n"), (200, "ok\n"))
    with closing(PdClient([pd.url])) as clock:
        given = clock.fetch_ts()
        monkeypatch.setattr(oracle, "replace_file", fail)
        pd._oracle._now_ms = lambda: tso.extract_physical(given) + 10 * oracle.AHEAD_MS
        with pytest.raises(SourceUnavailable):
            clock.fetch_ts()
        status, text = probe(pd.status_url, "readyz")
        assert (status, "bound of the timestamps" in text, "No space" in text) == (503, True, True)
        assert probe(pd.status_url, "healthz") == (200, "ok\n")
        monkeypatch.undo()
        clock.fetch_ts()
        assert probe(pd.status_url, "readyz") == (200, "ok\n")


def fail(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_placement_driver_whose_journal_broke_asks_for_a_restart(pd: PlacementDriver) -> None:
    with closing(EtcdClient([pd.url])) as etcd:
        etcd.put(b"key", b"value")
        with files_of_at_most(1), pytest.raises(BinlakeError):
            etcd.put(b"key", b"other")
    for path in ("healthz", "readyz"):
        status, text = probe(pd.status_url, path)
        assert (status, "journal" in text) == (503, True)


def test_a_status_address_in_use_is_one_clear_error(pd: PlacementDriver, tmp_path: Path) -> None:
    with pytest.raises(Permanent, match="cannot listen"):
        PlacementDriver(tmp_path / "other", status_addr=pd.status_url.removeprefix("http://")).start()
    PlacementDriver(tmp_path / "other").start().stop()  # the data directory is free again


def test_a_status_port_tells_what_its_service_waits_for() -> None:
    capture, reasons = Capture(CAPTURE), ["no pump accepted the prewrite"]
    outcomes = Outcomes.of(capture)
    with build_status_server(capture, outcomes, lambda: 0) as plain:
        assert (probe(plain.url, "healthz"), probe(plain.url, "readyz")) == ((200, "ok\n"), (200, "ok\n"))
        plain.probed = Probes(find_no_reason, lambda: reasons)
        assert probe(plain.url, "readyz") == (503, "no pump accepted the prewrite\n")
        assert probe(plain.url, "healthz") == (200, "ok\n")
