"""A request to the server: its header list, parsed and checked (RFC 9113 8.2, 8.3; gRPC over HTTP/2).

A plain HTTP handler sees request and response without a socket: one handler serves HTTP/1.1 and HTTP/2.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl, unquote

from binlake.rpc.headers import Field
from binlake.rpc.messages import RpcError, Status, parse_timeout

_OF_A_CONNECTION = frozenset((b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"))
_PSEUDO = frozenset((b":method", b":scheme", b":path", b":authority"))
_NEEDED = frozenset((b":method", b":scheme", b":path"))
_known_names: set[bytes] = set()  # valid names seen so far: connections repeat few names
_KNOWN_NAMES = 1000
_NAME_BYTES = 64  # longer names are not remembered
_LENGTH_DIGITS = 20  # of a content-length; above 4300 digits int() raises another error


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


class Malformed(Exception):
    """The header list breaks a rule of HTTP/2: a stream error."""


@dataclass(frozen=True, slots=True)
class Request:
    """`timeout_s` is inf without a grpc-timeout; `refusal`: why a well-formed gRPC request cannot be served."""

    method: str
    path: str
    grpc: bool
    gzip: bool
    timeout_s: float
    content_length: int
    headers: Mapping[str, str]
    refusal: RpcError | None = None

    def to_http(self, body: bytes, *, certified: bool) -> HttpRequest:
        """The request for an HTTP handler."""
        return build_http_request(self.method, self.path, self.headers, body, certified=certified)


def build_http_request(
    method: str, target: str, headers: Mapping[str, str], body: bytes, *, certified: bool
) -> HttpRequest:
    """Split `target` into path and query; the last value of a repeated parameter counts."""
    path, _, query = target.partition("?")
    return HttpRequest(method, unquote(path), dict(parse_qsl(query, keep_blank_values=True)), headers, body, certified)


def read(fields: list[Field] | None) -> Request | None:
    """The request; None if its header list was too large. Raises Malformed."""
    if fields is None:
        return None
    headers = _check_fields(fields)
    if not headers.keys() >= _NEEDED or not headers[b":path"]:
        raise Malformed("method, scheme or path is missing")
    kind = headers.get(b"content-type", b"")
    grpc = kind == b"application/grpc" or kind.startswith((b"application/grpc+", b"application/grpc;"))
    timeout_s, refusal = _read_grpc_terms(headers) if grpc else (float("inf"), None)
    length = headers.get(b"content-length", b"-1")
    if length != b"-1" and not (length.isdigit() and len(length) < _LENGTH_DIGITS):
        raise Malformed("content-length is not a number")
    return Request(
        method=headers[b":method"].decode("latin-1"),
        path=headers[b":path"].decode("latin-1"),
        grpc=grpc,
        gzip=headers.get(b"grpc-encoding") == b"gzip",
        timeout_s=timeout_s,
        content_length=int(length),
        headers=_decode_headers(headers),
        refusal=refusal,
    )


def _decode_headers(found: Mapping[bytes, bytes]) -> dict[str, str]:
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in found.items() if name[0] != 58}
    if b":authority" in found:
        headers["host"] = found[b":authority"].decode("latin-1")
    return headers


def check_trailers(fields: list[Field] | None) -> bool:
    """Check the trailers after a request's body; returns whether they are small enough. Raises Malformed."""
    if fields is None:
        return False
    if any(name.startswith(b":") for name, _ in fields):
        raise Malformed("pseudo header in trailers")
    _check_fields(fields)
    return True


def _check_fields(fields: list[Field]) -> dict[bytes, bytes]:
    headers: dict[bytes, bytes] = {}
    regular = False
    for name, value in fields:
        if name not in _known_names:
            _check_name(name)
        if name[0] == 58:  # ":"
            if regular or name in headers:
                raise Malformed("pseudo header repeated or after a regular one")
            headers[name] = value
        else:
            regular = True
            headers[name] = headers[name] + b", " + value if name in headers else value
            if name == b"te" and value != b"trailers":
                raise Malformed("te other than trailers")
    return headers


def _check_name(name: bytes) -> None:
    if not name or name != name.lower() or name in _OF_A_CONNECTION or not name.isascii():
        raise Malformed("header name not allowed in HTTP/2")
    if name[0] == 58 and name not in _PSEUDO:
        raise Malformed("unknown pseudo header")
    if len(name) <= _NAME_BYTES:
        if len(_known_names) >= _KNOWN_NAMES:
            _known_names.clear()
        _known_names.add(name)


def _read_grpc_terms(headers: Mapping[bytes, bytes]) -> tuple[float, RpcError | None]:
    if headers[b":method"] != b"POST":
        return 0.0, RpcError(Status.UNIMPLEMENTED, "a gRPC call is a POST")
    encoding = headers.get(b"grpc-encoding", b"identity")
    if encoding not in (b"identity", b"gzip"):
        text = f"grpc: Decompressor is not installed for grpc-encoding {encoding.decode('latin-1')!r}"
        return 0.0, RpcError(Status.UNIMPLEMENTED, text)
    try:
        return parse_timeout(headers[b"grpc-timeout"]) if b"grpc-timeout" in headers else float("inf"), None
    except RpcError as error:
        return 0.0, error
