"""Asking a node over its pages: an answer is the envelope `{message, code, data}`, code 200 = done (2.13)."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import Any

import httpx

from binlake.errors import ConfigError, Permanent, SourceUnavailable, UnknownOutcome

_TIMEOUT_S = 10.0
_DONE = 200


@dataclass(frozen=True)
class Identity:
    """PEM files for a node that speaks TLS; all empty = plain HTTP."""

    ca: str = ""
    cert: str = ""
    key: str = ""

    def context(self) -> ssl.SSLContext | None:
        """What a TLS connection needs; None for plain HTTP. Raises ConfigError for files that cannot be used."""
        if not (self.ca or self.cert or self.key):
            return None
        try:
            context = ssl.create_default_context(cafile=self.ca or None)
            if self.cert:
                context.load_cert_chain(self.cert, self.key or None)
        except (OSError, ssl.SSLError) as error:
            where = {"ssl-ca": self.ca, "ssl-cert": self.cert, "ssl-key": self.key, "reason": error}
            raise ConfigError("the TLS files cannot be used", where=where) from None
        return context


PLAIN = Identity()


def ask(method: str, host: str, path: str, identity: Identity = PLAIN) -> dict[str, Any]:
    """The envelope that the node at `host` (HOST:PORT) answers.

    Raises Permanent when the node refuses, SourceUnavailable when it cannot be reached, UnknownOutcome when it was
    asked and did not answer.
    """
    context = identity.context()
    url = f"{'http' if context is None else 'https'}://{host}{path}"
    try:
        answer = httpx.request(method, url, timeout=_TIMEOUT_S, verify=True if context is None else context)
        found = answer.json()
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        raise SourceUnavailable(
            f"the node cannot be reached: {error}",
            where={"url": url},
            hint="its process is gone or its address is not reachable from here",
        ) from None
    except httpx.HTTPError as error:
        raise UnknownOutcome(
            f"the node did not answer: {error or type(error).__name__}",
            where={"url": url},
            hint="look at its state with `binlake pumps` before asking again",
        ) from None
    except ValueError:
        raise Permanent(
            f"the answer is no envelope (HTTP {answer.status_code})", where={"url": url}, hint="is this a pump?"
        ) from None
    if not isinstance(found, dict) or found.get("code") != _DONE:
        message = found.get("message") if isinstance(found, dict) else found
        raise Permanent(f"the node refused: {message}", where={"url": url})
    return found
