"""Admits TLS callers of the embedded placement driver by the common name of their certificate."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import grpc


class AllowedCallers(grpc.ServerInterceptor):
    """Refuses every call of a caller whose certificate has none of the common names `names`."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = {name.encode() for name in names}

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], grpc.RpcMethodHandler[Any, Any] | None],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Wrap the handler in a check of the caller's certificate."""
        handler = continuation(handler_call_details)
        if handler is None:
            return None
        reads, writes = handler.request_deserializer, handler.response_serializer
        if handler.stream_stream is not None:
            return grpc.stream_stream_rpc_method_handler(self._guard_stream(handler.stream_stream), reads, writes)
        if handler.unary_unary is None:
            raise AssertionError(f"PD has no method of this kind: {handler_call_details.method}")
        return grpc.unary_unary_rpc_method_handler(self._guard(handler.unary_unary), reads, writes)

    def _guard(self, serve: Callable[..., Any]) -> Callable[..., Any]:
        def answer(request: Any, context: grpc.ServicerContext) -> Any:
            self._check(context)
            return serve(request, context)

        return answer

    def _guard_stream(self, serve: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
        def answer(requests: Any, context: grpc.ServicerContext) -> Iterator[Any]:
            self._check(context)
            yield from serve(requests, context)

        return answer

    def _check(self, context: grpc.ServicerContext) -> None:
        names = context.auth_context().get("x509_common_name", ())
        listed = [names] if isinstance(names, bytes) else names
        if not self._names.intersection(listed):
            name = b", ".join(listed).decode(errors="replace") or "none"
            context.abort(grpc.StatusCode.PERMISSION_DENIED, f"the common name is not on the allowed list: {name}")
