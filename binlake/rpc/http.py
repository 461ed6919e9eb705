"""Request and response of a plain HTTP handler, without a socket: one handler serves HTTP/1.1 and HTTP/2."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class HttpRequest:
    """One complete request. `path` is decoded, without the query; `headers` have lower-case names.

    `certified`: it came over TLS from a caller whose client certificate was verified.
    """

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    certified: bool = False


@dataclass(frozen=True)
class HttpResponse:
    """One complete answer; its length is added."""

    status: int
    content_type: str
    body: bytes


HttpHandler = Callable[[HttpRequest], HttpResponse]
"""Runs in a thread pool, so it may block; an exception becomes a 500 with its text."""
