"""Sources and trackers over TLS: the log, the checks and the scratch databases of servers that accept only TLS."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from support.certificates import certificate
from support.mariadb import MariaDb, MySql, execute, mariadb_in_memory
from support.sourcelog import end_of, source_of, transactions_until_now

from binlake.errors import SourceRefused, SourceUnavailable
from binlake.mysqlbinlog.definitions.descriptions import DatabaseDescription
from binlake.mysqlbinlog.model import Flavor
from binlake.pump_service.feeder.checks.report import run_checks
from binlake.pump_service.feeder.server import ask, build_tracker_arguments, connect
from binlake.pump_service.feeder.settings import FeederFile, TrackerSection
from binlake.pump_service.feeder.tracker import ScratchServer
from binlake.rpc import Tls

USER = {"user": "tls", "password": "secret"}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Tls:
    return certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def mariadb_by_tls(files: Tls) -> Iterator[MariaDb]:
    with mariadb_in_memory(
        (*MariaDb.list_source_options(), *(f"--{name}={file}" for name, file in tls_options(files)))
    ) as made:
        yield made


@pytest.fixture
def mysql_by_tls(files: Tls, mysql: MySql) -> Iterator[MySql]:
    """The session's server with the test's certificate instead of its generated one."""
    before = [("ssl_ca", "ca.pem"), ("ssl_cert", "server-cert.pem"), ("ssl_key", "server-key.pem")]
    for names in [(name.replace("-", "_"), str(file)) for name, file in tls_options(files)], before:
        execute(mysql, *(f"SET GLOBAL {name} = '{file}'" for name, file in names), "ALTER INSTANCE RELOAD TLS")
        if names is not before:
            yield mysql


@pytest.fixture(params=["mariadb_by_tls", "mysql_by_tls"])
def server(request: pytest.FixtureRequest) -> Iterator[MariaDb]:
    """Each server with a user who needs TLS and a client certificate."""
    source: MariaDb = request.getfixturevalue(request.param)
    execute(
        source, "CREATE USER tls IDENTIFIED BY 'secret' REQUIRE X509", "GRANT ALL ON *.* TO tls WITH GRANT OPTION",
        "CREATE DATABASE secure", "CREATE TABLE secure.t (id INT PRIMARY KEY, v LONGBLOB)",
    )  # fmt: skip
    yield source
    execute(source, "DROP USER tls", "DROP DATABASE secure")


def tls_options(files: Tls) -> list[tuple[str, Path | None]]:
    return [("ssl-ca", files.ca), ("ssl-cert", files.cert), ("ssl-key", files.key)]


def security(files: Tls, *without: str) -> dict[str, Any]:
    """The section `security` of a server."""
    return {name: str(file) for name, file in tls_options(files) if name not in without}


def test_a_log_is_read_by_tls_whatever_its_size(server: MariaDb, files: Tls) -> None:
    # S4-01
    start = end_of(server)
    execute(
        server, "INSERT INTO secure.t VALUES (1, REPEAT('x', 20000000))",
        *(f"INSERT INTO secure.t VALUES ({n}, 'small')" for n in range(2, 40)),
    )  # fmt: skip
    seen = transactions_until_now(server, start, security=security(files), **USER)
    assert [len(transaction.changes) for transaction in seen] == [1] * 39
    (large,) = seen[0].changes
    assert len(large.rows) > 20_000_000
    with closing(connect(source_of(server, security=security(files), **USER))) as link:
        assert ask(link, "SHOW SESSION STATUS LIKE 'Ssl_version'")[0][1].startswith("TLSv1")


def test_a_tracker_and_the_checks_use_tls(server: MariaDb, files: Tls) -> None:
    at = {"host": server.host, "port": server.port, "security": security(files), **USER}
    report = run_checks(FeederFile.model_validate({"tracker": at, "source": [{"name": "s1", **at}]}))
    assert [finding for _, finding in report if finding.verdict == "fail"] == []
    assert [finding.found[:4] for _, finding in report if finding.check == "TLS"] == ["TLSv"]
    flavor = Flavor.MARIADB if server.name == "mariadb" else Flavor.MYSQL
    tracker = ScratchServer("tls", flavor, build_tracker_arguments(TrackerSection.model_validate(at)))
    with closing(tracker):
        tracker.rebuild([DatabaseDescription("shop", "utf8mb4", "utf8mb4_bin")])
        assert tracker.describe_database("shop") == DatabaseDescription("shop", "utf8mb4", "utf8mb4_bin")
        tracker.rebuild([])


def test_certificate_errors_are_reported(server: MariaDb, files: Tls, tmp_path: Path) -> None:
    with pytest.raises(SourceRefused, match="ssl-cert"):
        connect(source_of(server, security=security(files, "ssl-cert", "ssl-key"), **USER))
    other = security(files) | {"ssl-ca": str(certificate(tmp_path).ca)}
    with pytest.raises(SourceUnavailable, match="CERTIFICATE_VERIFY_FAILED") as refused:
        connect(source_of(server, security=other, **USER))
    assert "`security`" in refused.value.hint


def test_a_server_without_tls_gets_no_unencrypted_password(mariadb_source: MariaDb, files: Tls) -> None:
    with pytest.raises(SourceUnavailable, match="SSL is required") as refused:
        connect(source_of(mariadb_source, security=security(files)))
    assert "`security`" in refused.value.hint
