"""A lean gRPC layer: hand-written HTTP/2 over asyncio and uvloop; grpcio in Python has a tenth of a Go pump's speed.

Server::

    server = RpcServer(http=handler)                        # handler(HttpRequest) -> HttpResponse, may block
    server.add_blocking("/pkg.Service/Unary", work)         # work(request bytes) -> response bytes, in a pool
    server.add_streaming("/pkg.Service/Stream", stream)     # stream(request bytes, sink): sink.send(message) -> alive?
    server.add("/pkg.Service/Quick", quick)                 # quick(call, request): on the loop, call.reply(...) later
    address = server.listen("127.0.0.1:0", tls)             # also server.listen_unix(path)
    server.start(); ...; server.stop(grace_s=10)

Client, from any plain thread::

    with Channel("host:port", tls=None) as channel:         # or "unix:/path"
        answer = channel.call("/pkg.Service/Unary", request, timeout_s=3)
        pending = channel.start("/pkg.Service/Unary", request); ...; answer = pending.result()
        with channel.stream("/pkg.Service/Stream", request, idle_timeout_s=30) as stream:
            for messages in stream.batches(): ...           # or: for message in stream

Requests and answers are bytes: serialise with protobuf. Every failed call raises RpcError with a `status` (Status); a
`work` or `stream` may raise it too. A Channel may be shared by threads and created before a fork; it connects at its
first call, and again after the connection was lost. docs/understand/rpc.md lists what is supported, and all limits.
"""

from __future__ import annotations

from binlake.rpc.call import Call, Handler
from binlake.rpc.client import Channel, MessageStream, PendingCall
from binlake.rpc.handlers import StreamSink
from binlake.rpc.limits import Limits
from binlake.rpc.messages import RpcError, Status
from binlake.rpc.request import HttpHandler, HttpRequest, HttpResponse
from binlake.rpc.server import RpcServer
from binlake.rpc.sockets import Tls

__all__ = [
    "Call",
    "Channel",
    "Handler",
    "HttpHandler",
    "HttpRequest",
    "HttpResponse",
    "Limits",
    "MessageStream",
    "PendingCall",
    "RpcError",
    "RpcServer",
    "Status",
    "StreamSink",
    "Tls",
]
