"""Links to servers with MySQL's protocol are encrypted and checked as `security` says: a server that shows another's
certificate gets no password, whoever connects."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.certificates import Authority
from support.mariadb import MariaDb, execute, mariadb_in_memory

from binlake.cluster.source.ddlhistory import SqlHistory
from binlake.common.sections import SqlSecurity
from binlake.config.model import LakeSection, Replication
from binlake.config.servers import SourceSection, SourceSql, TargetSection
from binlake.errors import BinlakeError, ConfigError, TargetRefused
from binlake.health import corechecks
from binlake.repair.verify import require_source_server
from binlake.spark_jobs.bootstrap.source import SnapshotSource
from binlake.target import TargetSession
from binlake.target.session.failures import is_server_wide

pytestmark = pytest.mark.mariadb
USER = {"user": "tls", "password": "secret"}


@dataclass(frozen=True)
class Encrypted:
    """A server whose certificate is for `localhost`; its user `tls` must use TLS, `known` a client certificate too."""

    server: MariaDb
    authority: Authority

    def build_target(self, host: str = "localhost", user: str = "tls", **security: str) -> TargetSection:
        section = SqlSecurity.model_validate(security)
        return TargetSection(host=host, port=self.server.port, user=user, password="secret", security=section)

    @property
    def checked(self) -> dict[str, str]:
        return {"ssl-ca": str(self.authority.path)}


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Encrypted]:
    authority = Authority(tmp_path_factory.mktemp("authority"))
    tls = authority.tls("server")
    options = (f"--ssl-ca={tls.ca}", f"--ssl-cert={tls.cert}", f"--ssl-key={tls.key}")
    with mariadb_in_memory(options) as server:
        execute(server, "CREATE USER tls IDENTIFIED BY 'secret' REQUIRE SSL", "GRANT ALL ON *.* TO tls")
        execute(server, "CREATE USER known IDENTIFIED BY 'secret' REQUIRE X509", "GRANT ALL ON *.* TO known")
        yield Encrypted(server, authority)


@pytest.fixture
def stranger(tmp_path: Path) -> dict[str, str]:
    """The section of somebody who trusts another authority."""
    return {"ssl-ca": str(Authority(tmp_path).path)}


def find_version(target: TargetSection) -> str:
    with closing(TargetSession(target)) as session:
        return str(session.fetch_rows("SHOW SESSION STATUS LIKE 'Ssl_version'")[0][1])


@pytest.mark.parametrize("mode", ["preferred", "required"])
def test_unchecked_modes_accept_any_certificate(encrypted: Encrypted, mode: str) -> None:
    assert find_version(encrypted.build_target("127.0.0.1", **{"ssl-mode": mode})).startswith("TLSv1")


def test_certificate_is_checked_by_ca_and_name(encrypted: Encrypted, stranger: Mapping[str, str]) -> None:
    assert find_version(encrypted.build_target(**encrypted.checked)).startswith("TLSv1")
    by_ca = encrypted.checked | {"ssl-mode": "verify-ca"}
    assert find_version(encrypted.build_target("127.0.0.1", **by_ca)).startswith("TLSv1")
    for host, security in (("127.0.0.1", encrypted.checked), ("localhost", stranger),
                           ("localhost", {"ssl-mode": "verify-identity"})):  # fmt: skip
        with pytest.raises(TargetRefused, match="certificate verify failed") as refused:
            TargetSession(encrypted.build_target(host, **security))
        assert "[target.security]" in refused.value.hint
        # No table is set aside for it.
        assert is_server_wide(refused.value)


def test_client_shows_its_certificate(encrypted: Encrypted) -> None:
    tls = encrypted.authority.tls("client")
    own = {"ssl-cert": str(tls.cert), "ssl-key": str(tls.key)}
    assert find_version(encrypted.build_target(user="known", **encrypted.checked, **own)).startswith("TLSv1")
    with pytest.raises(TargetRefused, match="refuses the login"):
        TargetSession(encrypted.build_target(user="known", **encrypted.checked))


def test_server_without_tls_gets_no_password(mariadb: MariaDb) -> None:
    target = TargetSection(host=mariadb.host, port=mariadb.port, **USER, security=SqlSecurity(ssl_mode="required"))
    with pytest.raises(TargetRefused, match="SSL is required"):
        TargetSession(target)


def test_files_that_cannot_be_read_are_named(encrypted: Encrypted, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="TLS files cannot be used") as refused:
        TargetSession(encrypted.build_target(**{"ssl-ca": str(tmp_path / "gone.pem")}))
    assert "gone.pem" in str(refused.value.where["ssl-ca"])


def build_replication(encrypted: Encrypted, cluster: Mapping[str, str], own: Mapping[str, str] | None) -> Replication:
    security = None if own is None else SqlSecurity.model_validate(own)
    sql = SourceSql(host="localhost", port=encrypted.server.port, **USER, security=security)
    source = SourceSection.model_validate({"security": dict(cluster), "sql": sql})
    return Replication(name="r", source=source, lake=LakeSection(path="/lake"))


# The section of `sql` counts, else the cluster's files; without both, TLS is used unchecked.
@pytest.mark.parametrize("of_sql", [True, False])
def test_all_that_read_the_source_by_sql_check_it(
    encrypted: Encrypted, stranger: Mapping[str, str], of_sql: bool
) -> None:
    def build(security: Mapping[str, str]) -> Replication:
        return build_replication(encrypted, {} if of_sql else security, security if of_sql else None)

    good, bad = build(encrypted.checked), build(stranger)
    with closing(TargetSession(require_source_server(good))):
        pass
    with pytest.raises(BinlakeError, match="certificate verify failed"):
        TargetSession(require_source_server(bad))
    for replication in (good, bad):
        assert replication.source.sql is not None
        history = SqlHistory(replication.source.sql, 5.0, replication.source.sql_security)
        expected = "certificate verify failed" if replication is bad else "tidb_ddl_history"
        with pytest.raises(BinlakeError, match=expected):
            history.fetch_page(0)
        expected = "certificate verify failed" if replication is bad else "it is not a TiDB"
        with pytest.raises(BinlakeError, match=expected), SnapshotSource.of(replication, 1).open_session():
            pass


def test_doctor_names_links_in_the_clear_and_unchecked_ones(
    encrypted: Encrypted, mariadb: MariaDb, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find(target: TargetSection) -> tuple[str, str]:
        with closing(TargetSession(target)) as session:
            finding = corechecks._check_tls(target, session)
        return finding.verdict, finding.found.partition(", ")[2]

    clear = TargetSection(host=mariadb.host, port=mariadb.port, user=mariadb.user)
    assert find(clear) == ("ok", "to this machine")
    monkeypatch.setattr(corechecks, "LOOPBACK", frozenset())
    assert find(clear) == ("warning", "")
    assert find(encrypted.build_target()) == ("warning", "the server's certificate is not checked")
    assert find(encrypted.build_target(**encrypted.checked)) == ("ok", "the server's certificate is checked")


@pytest.mark.parametrize(
    ("section", "problem"),
    [
        ({"ssl-mode": "required", "ssl-ca": "/ca.pem"}, "has no effect"),
        ({"ssl-mode": "disabled", "ssl-cert": "/c.pem"}, "uses no files"),
    ],
)
def test_settings_that_would_not_count_are_refused(section: dict[str, str], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        SqlSecurity.model_validate(section)
