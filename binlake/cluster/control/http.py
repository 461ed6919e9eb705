"""Calls a node over HTTP: an answer is the envelope `{message, code, data}`, code 200 = done (2.13)."""

from __future__ import annotations

from typing import Any

import httpx

from binlake.errors import Permanent, SourceUnavailable, UnknownOutcome
from binlake.rpc import Tls

_TIMEOUT_S = 10.0
_DONE = 200


def ask(method: str, host: str, path: str, tls: Tls | None = None, *, token: str = "") -> dict[str, Any]:
    """Call the node at `host` (HOST:PORT), by HTTPS with `tls`; `token` is sent if not empty. Returns the envelope.

    Raises Permanent if the node refuses, SourceUnavailable if it cannot be reached, UnknownOutcome if it got the
    request and did not answer.
    """
    context = True if tls is None else tls.build_http_context()
    url = f"{'http' if tls is None else 'https'}://{host}{path}"
    try:
        headers = {"authorization": f"Bearer {token}"} if token else {}
        answer = httpx.request(method, url, timeout=_TIMEOUT_S, verify=context, headers=headers)
        envelope = answer.json()
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        raise SourceUnavailable(
            f"the node cannot be reached: {error}",
            where={"url": url},
            hint="its process has ended, or its address is not reachable from here",
        ) from None
    except httpx.HTTPError as error:
        raise UnknownOutcome(
            f"the node did not answer: {error or type(error).__name__}",
            where={"url": url},
            hint="check its state with `binlake pumps` before you retry",
        ) from None
    except ValueError:
        raise Permanent(
            f"the answer is not in the expected format (HTTP {answer.status_code})",
            where={"url": url},
            hint="is this a pump?",
        ) from None
    if not isinstance(envelope, dict) or envelope.get("code") != _DONE:
        message = envelope.get("message") if isinstance(envelope, dict) else envelope
        raise Permanent(f"the node refused: {message}", where={"url": url})
    return envelope
