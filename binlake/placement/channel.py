"""Where PD is: a list of URLs of which any may answer; every failure names them all."""

from __future__ import annotations

from collections.abc import Sequence

import grpc

from binlake.errors import BinlakeError, ConfigError, Permanent, SourceUnavailable

OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
    # A machine that vanishes closes no connection: streams learn it by pings, as PD's own clients send them.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.http2.max_pings_without_data", 0),
)
_REFUSED = {
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.OUT_OF_RANGE,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED,
}
"""Answers of a server that is well: the same request gets them again."""


def targets(urls: Sequence[str]) -> list[str]:
    """`host:port` of each URL. Raises ConfigError for TLS (not supported yet) and for no URL at all."""
    found = [url.strip().removeprefix("http://").rstrip("/") for url in urls if url.strip()]
    if not found or any(target.startswith("https://") for target in found):
        raise ConfigError("unusable PD address", where={"pd-urls": ",".join(urls)}, hint="http://host:port, comma list")
    return found


def connect(urls: Sequence[str], timeout_s: float) -> grpc.Channel:
    """A channel to the first address that answers within `timeout_s` seconds. Raises SourceUnavailable."""
    for target in targets(urls):
        channel = grpc.insecure_channel(target, options=OPTIONS)
        try:
            grpc.channel_ready_future(channel).result(timeout_s)
        except grpc.FutureTimeoutError:
            channel.close()
        else:
            return channel
    raise unavailable(urls, f"no answer within {timeout_s:g} s")


def unavailable(urls: Sequence[str], why: object) -> SourceUnavailable:
    """The error for a PD that cannot be used: `why` is text or the RpcError."""
    text = f"{why.details()} ({why.code().name})" if isinstance(why, grpc.RpcError) else str(why)
    return SourceUnavailable(
        f"PD cannot be reached: {text}", where={"pd-urls": ",".join(urls)}, hint="is it running? `binlake pd --help`"
    )


def failure(urls: Sequence[str], error: grpc.RpcError) -> BinlakeError:
    """What a failed call means: Permanent when the server answered and refused, else SourceUnavailable."""
    if error.code() not in _REFUSED:
        return unavailable(urls, error)
    return Permanent(f"PD refused: {error.details()} ({error.code().name})", where={"pd-urls": ",".join(urls)})
