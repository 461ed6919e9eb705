"""Decides which callers may command a pump through its pages.

The original's commands (pause, close, gc) stay open to binlogctl, which cannot authenticate, unless the operator
configures otherwise; they are never open to another site's page in a user's browser. Binlake's own commands decide what
happens to data, so they need the token or a client certificate.
"""

from __future__ import annotations

import hmac
import os
import secrets
from collections.abc import Mapping
from enum import IntEnum
from pathlib import Path

from binlake.errors import ConfigError
from binlake.rpc import HttpRequest

_SCHEME = "Bearer "


class Needs(IntEnum):
    """What a page requires of its caller."""

    NOTHING = 0
    """The page changes nothing."""
    OWN_SITE = 1
    """The page acts, and the original has it, too."""
    PROOF = 2
    """The page acts, and only Binlake has it."""


class Gate:
    """`token_file`: holds the token; if it is missing, it is created with a random token. `strict`: the original's
    commands need proof, too. Raises ConfigError when the file can be neither read nor created."""

    def __init__(self, token_file: Path, *, strict: bool = False) -> None:
        self._file = token_file
        self._strict = strict
        try:
            if not token_file.exists():
                _create_token(token_file)
            self._read_token()
        except OSError as error:
            raise ConfigError(
                f"the token for commands cannot be saved: {error.strerror}", where={"admin-token-file": token_file}
            ) from None

    def find_reason_to_refuse(self, request: HttpRequest, needs: Needs) -> str:
        """Why `request` is refused; empty when it is served."""
        if needs is Needs.NOTHING:
            return ""
        if not _is_same_site(request.headers):
            return "refused: the request comes from a page of another site"
        if needs is Needs.OWN_SITE and not self._strict:
            return ""
        if request.certified or self._has_token(request.headers.get("authorization", "")):
            return ""
        return f"refused: pass a client certificate, or the token in {self._file} (--token-file)"

    def _has_token(self, authorization: str) -> bool:
        if not authorization.startswith(_SCHEME):
            return False
        token = self._read_token()
        return bool(token) and hmac.compare_digest(authorization.removeprefix(_SCHEME).encode(), token)

    def _read_token(self) -> bytes:
        # Read at each request, so a new token takes effect without a restart.
        return self._file.read_bytes().strip()


def _create_token(path: Path) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w", encoding="ascii") as file:
        file.write(f"{secrets.token_hex(32)}\n")


def _is_same_site(headers: Mapping[str, str]) -> bool:
    """False when a browser sent this from a page of another site; other callers do not send these headers."""
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        return False
    origin = headers.get("origin")
    return origin is None or origin.partition("://")[2] == headers.get("host", "")
