"""What a page gets and gives back, apart from any transport."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class HttpRequest:
    """One request; `headers` have lower-case names, `path` is without the query."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class HttpResponse:
    """One whole answer."""

    status: int
    content_type: str
    body: bytes


HttpHandler = Callable[[HttpRequest], HttpResponse]
"""Answers one request; may block."""
