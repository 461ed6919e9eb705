"""Channels to PD: any URL of a list may answer, https:// ones by TLS; every error names all URLs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import grpc

from binlake.errors import BinlakeError, ConfigError, Permanent, SourceUnavailable
from binlake.rpc import Tls

OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
    # A machine that fails does not close its connections: streams detect it by pings, as PD's own clients do.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.http2.max_pings_without_data", 0),
)
_HEALTH = "/grpc.health.v1.Health/Check"
"""A question that may be asked of any server; most do not implement it."""
_REFUSED = {
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.OUT_OF_RANGE,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED,
}
"""Refusals of a healthy server: a retry gets the same answer."""

Answer = TypeVar("Answer")


def parse_urls(urls: Sequence[str]) -> list[tuple[str, bool]]:
    """`host:port` of each URL, and whether it uses TLS. Raises ConfigError if there is no URL."""
    addresses = [url.strip().rstrip("/") for url in urls if url.strip()]
    if not addresses:
        hint = "use http://host:port or https://host:port, or a comma list of them"
        raise ConfigError("invalid address of PD", where={"pd-urls": ",".join(urls)}, hint=hint)
    return [(url.removeprefix("https://").removeprefix("http://"), url.startswith("https://")) for url in addresses]


def connect(urls: Sequence[str], timeout_s: float, tls: Tls | None = None) -> grpc.Channel:
    """A channel to the first address that answers within `timeout_s` seconds; `tls` applies to https:// addresses.

    Raises SourceUnavailable; ConfigError for unusable TLS files, and for TLS files with an http:// address.
    """
    return connect_serving(urls, timeout_s, lambda _: None, tls)[0]


def connect_serving(
    urls: Sequence[str], timeout_s: float, first_call: Callable[[grpc.Channel], Answer], tls: Tls | None = None
) -> tuple[grpc.Channel, Answer]:
    """A channel to the first address that can serve, and the result of `first_call` there; raises as `connect`.

    A server that accepts the connection may not be able to serve: a member without a quorum, a proxy without a
    backend. Then `first_call` raises a BinlakeError; if no address serves, the error of the last one is raised.
    """
    last: BinlakeError = build_unavailable_error(urls, f"no answer within {timeout_s:g} s")
    addresses = parse_urls(urls)
    if tls is not None and not all(encrypted for _, encrypted in addresses):
        raise ConfigError(
            "TLS is configured, but an address of PD is http://",
            where={"pd-urls": ",".join(urls)},
            hint="use https:// in the addresses of PD, or remove the files from `security`",
        )
    for target, encrypted in addresses:
        channel = open_channel(target, (tls or Tls()) if encrypted else None)
        try:
            if _await_answer(channel, timeout_s):
                return channel, first_call(channel)
            channel.close()
        except BinlakeError as error:
            channel.close()
            last = error
        except BaseException:
            channel.close()
            raise
    raise last


def _await_answer(channel: grpc.Channel, timeout_s: float) -> bool:
    """Whether the server answers within `timeout_s`: whatever it says about its health, it is connected then.

    grpc's `channel_ready_future` would ask for the state in a thread, for whose pause of 0.2 s `close` waits.
    """
    ask: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(_HEALTH)
    try:
        ask(b"", timeout=timeout_s, wait_for_ready=True)
    except grpc.RpcError as error:
        return error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED
    return True


def open_channel(target: str, tls: Tls | None) -> grpc.Channel:
    """A channel to HOST:PORT, by TLS if given; it connects when it is used. Raises ConfigError."""
    if tls is None:
        return grpc.insecure_channel(target, options=OPTIONS)
    return grpc.secure_channel(target, _build_credentials(tls), options=OPTIONS)


def _build_credentials(tls: Tls) -> grpc.ChannelCredentials:
    tls.build_client_context()  # reports unusable files, unlike grpcio
    ca, key, cert = (None if file is None else file.read_bytes() for file in (tls.ca, tls.key, tls.cert))
    return grpc.ssl_channel_credentials(ca, key, cert)


def build_unavailable_error(urls: Sequence[str], why: object) -> SourceUnavailable:
    """The error for a PD that cannot be used: `why` is text or the RpcError."""
    text = f"{why.details()} ({why.code().name})" if isinstance(why, grpc.RpcError) else str(why)
    return SourceUnavailable(
        f"PD cannot be reached: {text}", where={"pd-urls": ",".join(urls)}, hint="is it running? `binlake pd --help`"
    )


def call_error(urls: Sequence[str], error: grpc.RpcError) -> BinlakeError:
    """The error for a failed call: Permanent if the server answered and refused, else SourceUnavailable."""
    if error.code() not in _REFUSED:
        return build_unavailable_error(urls, error)
    return Permanent(f"PD refused: {error.details()} ({error.code().name})", where={"pd-urls": ",".join(urls)})
