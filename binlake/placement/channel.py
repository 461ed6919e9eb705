"""Where PD is: a list of URLs of which any may answer, https:// ones by TLS; every failure names them all."""

from __future__ import annotations

from collections.abc import Sequence

import grpc

from binlake.errors import BinlakeError, ConfigError, Permanent, SourceUnavailable
from binlake.rpc import Tls

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


def targets(urls: Sequence[str]) -> list[tuple[str, bool]]:
    """`host:port` of each URL, and whether it speaks TLS. Raises ConfigError for no URL at all."""
    found = [url.strip().rstrip("/") for url in urls if url.strip()]
    if not found:
        hint = "http://host:port or https://host:port, comma list"
        raise ConfigError("unusable PD address", where={"pd-urls": ",".join(urls)}, hint=hint)
    return [(url.removeprefix("https://").removeprefix("http://"), url.startswith("https://")) for url in found]


def connect(urls: Sequence[str], timeout_s: float, tls: Tls | None = None) -> grpc.Channel:
    """A channel to the first address that answers within `timeout_s` seconds; `tls` is for those of https://.

    Raises SourceUnavailable; ConfigError for files that cannot be used.
    """
    for target, encrypted in targets(urls):
        if encrypted:
            channel = grpc.secure_channel(target, _credentials(tls or Tls()), options=OPTIONS)
        else:
            channel = grpc.insecure_channel(target, options=OPTIONS)
        try:
            grpc.channel_ready_future(channel).result(timeout_s)
        except grpc.FutureTimeoutError:
            channel.close()
        else:
            return channel
    raise unavailable(urls, f"no answer within {timeout_s:g} s")


def _credentials(tls: Tls) -> grpc.ChannelCredentials:
    tls.client_context()  # tells of files that cannot be used, which grpcio does not
    ca, key, cert = (None if file is None else file.read_bytes() for file in (tls.ca, tls.key, tls.cert))
    return grpc.ssl_channel_credentials(ca, key, cert)


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
