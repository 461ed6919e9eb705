"""Sections for TLS: the files of a cluster's links, and of a link to a server with MySQL's protocol."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from binlake.base.sections.values import Section

SslMode = Literal["preferred", "required", "verify-ca", "verify-identity", "disabled"]
"""The modes of MySQL's clients."""
_CHECKING = ("verify-ca", "verify-identity")


class SecuritySection(Section):
    """TLS to PD and TiDB's status port if their URL is https://, and to pumps and `source.sql` if any file is given."""

    ssl_ca: str = Field(
        "", description="PEM file of the CA that signed the servers' certificates; empty = the system's CAs"
    )
    ssl_cert: str = Field("", description="PEM file of the client certificate, if the servers require one")
    ssl_key: str = Field("", description="PEM file of the client certificate's key")

    def list_files(self) -> tuple[str, str, str]:
        """CA, certificate and key; empty = none."""
        return self.ssl_ca, self.ssl_cert, self.ssl_key


class SqlSecurity(SecuritySection):
    """TLS towards this server."""

    ssl_mode: Literal["", SslMode] = Field(
        "",
        description="as of MySQL's clients: `preferred`: TLS if the server offers it, its certificate is not checked;"
        " `required`: TLS, not checked; `verify-ca`: signed by ssl-ca; `verify-identity`: signed by ssl-ca (empty: a CA"
        " of the system) for this host; `disabled`. Empty = `verify-identity` if any file is given, else `preferred`",
    )

    @model_validator(mode="after")
    def _require_files_that_count(self) -> SqlSecurity:
        if any(self.list_files()) and self.mode in ("preferred", "disabled"):
            raise ValueError(f"`ssl-mode` {self.mode} uses no files: set `required` or `verify-identity`")
        if self.ssl_ca and not self.checks_certificate:
            raise ValueError(f"`ssl-mode` {self.mode} does not check the certificate, so `ssl-ca` has no effect")
        return self

    @property
    def mode(self) -> SslMode:
        """The mode that applies."""
        return self.ssl_mode or ("verify-identity" if any(self.list_files()) else "preferred")

    @property
    def checks_certificate(self) -> bool:
        """Whether a server with another's certificate is refused."""
        return self.mode in _CHECKING
