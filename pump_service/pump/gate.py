"""Who may command a pump over its pages.

What an original pump has too (pause, close, gc) stays open to binlogctl, which can show nothing, unless the operator
says otherwise; never to the page of another site in a user's browser. What only we have decides about data: it needs
the token, or a client certificate.
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
    """What a page asks of its caller."""

    NOTHING = 0
    """It only tells."""
    OWN_SITE = 1
    """It acts, as the original's does."""
    PROOF = 2
    """It acts, and the original has nothing like it."""


class Gate:
    """`token_file`: holds the token; made with a random one when it is not there. `strict`: what the original has needs
    proof, too. Raises ConfigError when the file can be neither read nor made."""

    def __init__(self, token_file: Path, *, strict: bool = False) -> None:
        self._file = token_file
        self._strict = strict
        try:
            if not token_file.exists():
                _create(token_file)
            self._token()
        except OSError as error:
            raise ConfigError(
                f"the token for commands cannot be saved: {error.strerror}", where={"admin-token-file": token_file}
            ) from None

    def refusal(self, request: HttpRequest, needs: Needs) -> str:
        """Why `request` is not served; empty when it is."""
        if needs is Needs.NOTHING:
            return ""
        if not _same_site(request.headers):
            return "refused: the request comes from a page of another site"
        if needs is Needs.OWN_SITE and not self._strict:
            return ""
        if request.certified or self._shown(request.headers.get("authorization", "")):
            return ""
        return f"refused: pass a client certificate, or the token in {self._file} (--token-file)"

    def _shown(self, authorization: str) -> bool:
        if not authorization.startswith(_SCHEME):
            return False
        token = self._token()
        return bool(token) and hmac.compare_digest(authorization.removeprefix(_SCHEME).encode(), token)

    def _token(self) -> bytes:
        # Read each time: a new token counts without a restart.
        return self._file.read_bytes().strip()


def _create(path: Path) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w", encoding="ascii") as file:
        file.write(f"{secrets.token_hex(32)}\n")


def _same_site(headers: Mapping[str, str]) -> bool:
    """Whether a browser did not send this for a page of another site; other callers say nothing of the kind."""
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        return False
    origin = headers.get("origin")
    return origin is None or origin.partition("://")[2] == headers.get("host", "")
