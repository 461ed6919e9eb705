"""Connection types of Airflow for the servers around a replication, each with a test that the UI's button runs.

`airflow:CONN_ID` in a replication's file takes user and password of any type, also of these. All imports of clients are
late: Airflow imports this module to list its connection types.
"""

from __future__ import annotations

from abc import abstractmethod
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import quote, urlencode

from airflow.sdk import BaseHook, Connection
from pydantic import ValidationError

from binlake.common.sections import SqlSecurity
from binlake.errors import BinlakeError, ConfigError, Permanent, Transient

if TYPE_CHECKING:
    from binlake.target import TargetSession


class CheckedHook(BaseHook):
    """A hook whose connection can be tested: `check` says in one line what it found, or raises BinlakeError."""

    conn_name_attr = "binlake_conn_id"
    conn_type: ClassVar[str]
    hook_name: ClassVar[str]

    def __init__(self, binlake_conn_id: str) -> None:
        super().__init__()
        self.binlake_conn_id = binlake_conn_id

    @abstractmethod
    def check(self, connection: Connection) -> str:
        """What answers behind `connection`. Raises BinlakeError."""

    def test_connection(self) -> tuple[bool, str]:
        """For the button *Test* of the UI: whether it answers, and what was found."""
        try:
            return True, self.check(self.get_connection(self.binlake_conn_id))
        except BinlakeError as error:
            return False, f"{error.message}. {error.hint}".rstrip(". ")


def read_security(connection: Connection) -> SqlSecurity:
    """The keys `ssl-ca`, `ssl-cert`, `ssl-key`, `ssl-mode` of its extra. Raises ConfigError for wrong ones."""
    given: dict[str, Any] = {
        key: value for key, value in connection.extra_dejson.items() if key.startswith(("ssl-", "ssl_"))
    }
    try:
        return SqlSecurity.model_validate(given)
    except ValidationError as error:
        raise ConfigError(f"the extra of the connection is wrong: {error.errors()[0]['msg']}") from None


def list_tls_files(connection: Connection) -> tuple[str, str, str]:
    """CA, certificate and key of its extra; empty = none."""
    return read_security(connection).list_files()


_WAIT_S = 5.0


class DatabaseHook(CheckedHook):
    """A server with MySQL's protocol; its extra may have `db-type` and the keys of `security`."""

    conn_type = "binlake_database"
    hook_name = "Binlake: MySQL, MariaDB, TiDB"

    def get_conn(self) -> TargetSession:
        """A session as windows have it. Raises BinlakeError."""
        return self._open(self.get_connection(self.binlake_conn_id))

    def check(self, connection: Connection) -> str:
        """Its version, and whether the link is encrypted."""
        with closing(self._open(connection)) as session:
            version = session.fetch_value("SELECT VERSION()")
            tls = dict(session.fetch_rows("SHOW SESSION STATUS LIKE 'Ssl_version'")).get("Ssl_version")
        return f"{version} at {session.place}, {tls or 'without TLS'}"

    def _open(self, connection: Connection) -> TargetSession:
        from binlake.config.servers import TargetSection
        from binlake.target import TargetSession

        return TargetSession(
            TargetSection.model_validate(
                {
                    "db-type": connection.extra_dejson.get("db-type", "mysql"),
                    "host": connection.host or "127.0.0.1",
                    "port": connection.port or 3306,
                    "user": connection.login or "root",
                    "password": connection.password or "",
                    "security": read_security(connection),
                    "connect-timeout-s": _WAIT_S,
                }
            )
        )


class PdHook(CheckedHook):
    """A placement driver; the schema is http or https, the extra may have the keys of `security`."""

    conn_type = "binlake_pd"
    hook_name = "Binlake: placement driver"

    def check(self, connection: Connection) -> str:
        """Its cluster, which also proves that it serves."""
        from binlake.cluster.placement import PdClient
        from binlake.rpc import Tls

        url = f"{connection.schema or 'http'}://{connection.host or '127.0.0.1'}:{connection.port or 2379}"
        with closing(PdClient([url], _WAIT_S, tls=Tls.of(*list_tls_files(connection)))) as pd:
            return f"cluster {pd.fetch_cluster_id()} at {url}"


class LakeHook(CheckedHook):
    """A folder or bucket of lakes: extra `path`, of a store `endpoint`, `region`; login and password are its keys."""

    conn_type = "binlake_lake"
    hook_name = "Binlake: lake"

    def check(self, connection: Connection) -> str:
        """Whether it can be listed."""
        extra = connection.extra_dejson
        path = str(extra.get("path", ""))
        if not path:
            raise ConfigError("the connection names no lake", hint='extra: {"path": "s3://bucket/prefix"}')
        if "://" in path:
            return self._list_bucket(connection, path)
        if not Path(path).is_dir():
            raise Permanent(f"there is no folder {path} on this machine")
        return f"folder {path}: {sum(1 for _ in Path(path).iterdir())} entries"

    def _list_bucket(self, connection: Connection, path: str) -> str:
        from obstore.exceptions import BaseError

        from binlake.lake.access import Access, locate_below
        from binlake.lake.objects import build_objects

        extra = connection.extra_dejson
        access = Access(str(extra.get("endpoint") or ""), str(extra.get("region", "us-east-1")))
        keys = (connection.login, connection.password or "") if connection.login else None
        store = build_objects(path, access, keys, _WAIT_S)
        bucket, _, prefix = locate_below(path).partition("/")
        try:
            found = store.list_with_delimiter()
        except (BaseError, FileNotFoundError) as error:
            raise Transient(f"the store does not list {path}: {str(error).partition(chr(10))[0][:200]}") from None
        return f"bucket {bucket}: {len(found['common_prefixes'])} lakes below {prefix or '/'}"


class KafkaHook(CheckedHook):
    """A broker of a feed; login and password for SASL, the extra has parameters of a sink URI (`sasl-mechanism`, …)."""

    conn_type = "binlake_kafka"
    hook_name = "Binlake: Kafka"

    def check(self, connection: Connection) -> str:
        """The number of its brokers and topics."""
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        from binlake.config.sinkuri import parse_sink_uri
        from binlake.feed.kafkaclient import build_client_settings

        words = {key: str(value) for key, value in connection.extra_dejson.items()}
        if connection.login:
            words |= {"sasl-user": connection.login, "sasl-password": connection.password or ""}
        address = f"{connection.host or '127.0.0.1'}:{connection.port or 9092}"
        kafka = parse_sink_uri(f"kafka://{address}/?{urlencode({'protocol': 'canal-json', **words})}").kafka
        assert kafka is not None
        try:
            found = AdminClient(build_client_settings(kafka)).list_topics(timeout=_WAIT_S)
        except KafkaException as error:
            raise Transient(f"no broker answers at {address}: {error.args[0].str()}") from None
        return f"{len(found.brokers)} brokers, {len(found.topics)} topics at {address}"


class RegistryHook(CheckedHook):
    """A schema registry; the schema is http or https, the extra may have `path`, and `ca`, `cert`, `key`."""

    conn_type = "binlake_registry"
    hook_name = "Binlake: schema registry"

    def check(self, connection: Connection) -> str:
        """That it answers."""
        from binlake.feed.registry import SchemaRegistry

        user = f"{quote(connection.login, '')}:{quote(connection.password or '', '')}@" if connection.login else ""
        extra = {key: str(value) for key, value in connection.extra_dejson.items()}
        path = extra.pop("path", "")
        files = f"?{urlencode(extra)}" if extra else ""
        scheme, port = connection.schema or "http", connection.port or 8081
        with SchemaRegistry(f"{scheme}://{user}{connection.host or '127.0.0.1'}:{port}{path}{files}") as registry:
            registry.require_answer()
            return f"answers at {registry.shown}"


HOOKS: tuple[type[CheckedHook], ...] = (DatabaseHook, PdHook, LakeHook, KafkaHook, RegistryHook)
