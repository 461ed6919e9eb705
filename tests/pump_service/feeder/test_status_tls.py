"""The feeder's status port by TLS: tasks and pumps that read it check its certificate, and show theirs if it asks."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from pydantic import ValidationError
from support.certificates import Authority

from binlake.cluster.source.hearing import listen
from binlake.cluster.source.tidb import StatusPort
from binlake.errors import SourceUnavailable
from binlake.pump_service.feeder import command
from binlake.pump_service.feeder.settings import FeederFile, StatusTls
from binlake.pump_service.statusport import StatusJobs, StatusServer
from binlake.rpc import Tls
from binlake.testkit.replay.recorded import Outcomes, RecordedMvcc

Serve = Callable[[StatusTls], str]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Serves with these settings; returns the URL."""
    running: list[StatusServer] = []

    def start(security: StatusTls) -> str:
        pages = {"/feeder": lambda: ('{"name": "f", "sources": []}', "application/json")}
        answers = (StatusJobs([]), RecordedMvcc(Outcomes([]), {}))
        server = StatusServer({}, *answers, lambda: 1, "localhost:0", pages=pages, tls=security.to_tls())
        running.append(server.__enter__())
        # The certificate is for the name, and the server shows its address.
        return server.url.replace("127.0.0.1", "localhost")

    yield start
    for server in running:
        server.stop()


def build_section(authority: Authority, *, asks_callers: bool = False, allowed: str = "") -> StatusTls:
    tls = authority.tls("feeder")
    ca = str(authority.path) if asks_callers else ""
    return StatusTls(ssl_ca=ca, ssl_cert=str(tls.cert), ssl_key=str(tls.key), cert_allowed_cn=allowed)


def ask(url: str, tls: Tls | None) -> str:
    return StatusPort(url, 5.0, tls).get("/feeder")


def test_callers_check_the_certificate(
    serve: Serve, authority: Authority, tmp_path_factory: pytest.TempPathFactory
) -> None:
    url = serve(build_section(authority))
    assert urlsplit(url).scheme == "https"
    assert "sources" in ask(url, Tls(ca=authority.path))
    assert listen([url], 5.0, Tls(ca=authority.path)).silent == ()
    stranger = Authority(tmp_path_factory.mktemp("stranger"))
    for tls in (Tls(ca=stranger.path), None):
        with pytest.raises(SourceUnavailable, match=r"(?i)certificate.verify.failed"):
            ask(url, tls)
    with pytest.raises(SourceUnavailable):
        ask(url.replace("https:", "http:"), None)


def test_callers_show_their_certificate(serve: Serve, authority: Authority) -> None:
    url = serve(build_section(authority, asks_callers=True, allowed="task, pump"))
    assert "sources" in ask(url, authority.tls("task"))
    for refused in (Tls(ca=authority.path), authority.tls("somebody")):
        with pytest.raises(SourceUnavailable):
            ask(url, refused)


def test_silent_caller_keeps_nobody_waiting(serve: Serve, authority: Authority) -> None:
    url = serve(build_section(authority))
    parts = urlsplit(url)
    with closing(socket.create_connection((parts.hostname or "", parts.port or 0))):
        assert "sources" in ask(url, Tls(ca=authority.path))


def test_own_command_reads_the_port(serve: Serve, authority: Authority) -> None:
    section = build_section(authority, asks_callers=True)
    settings = FeederFile.model_construct(status_addr=urlsplit(serve(section)).netloc, status_security=section)
    assert command._ask_feeder(settings) == {"name": "f", "sources": []}


@pytest.mark.parametrize("section", [{"ssl-ca": "/ca.pem"}, {"cert-allowed-cn": "task"}])
def test_port_needs_a_certificate_of_its_own(section: dict[str, str]) -> None:
    with pytest.raises(ValidationError, match="needs `ssl-cert` and `ssl-key`"):
        StatusTls.model_validate(section)
