"""What the hooks share: a connection of Airflow, and a check of what is behind it."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

from airflow.sdk import BaseHook, Connection
from pydantic import ValidationError

from binlake.base.sections.security import SqlSecurity
from binlake.errors import BinlakeError, ConfigError


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
