"""grpc.health.v1: Check and Watch. Its two messages have one field each, and are encoded by hand.

Generated classes would clash with those of any other package in the process that contains the same proto file.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

from binlake.rpc.call import Call, Handler
from binlake.rpc.limits import choose_slot_to_free
from binlake.rpc.messages import Status

_WATCHERS = 1000


class Serving(IntEnum):
    """HealthCheckResponse.ServingStatus."""

    UNKNOWN = 0
    SERVING = 1
    NOT_SERVING = 2
    SERVICE_UNKNOWN = 3


class Health:
    """Serving states by service name, "" = the whole server. Used on the loop."""

    def __init__(self) -> None:
        self._services: dict[str, Serving] = {"": Serving.SERVING}
        self._watchers: dict[Call, str] = {}

    def list_handlers(self) -> Mapping[str, Handler]:
        """The handlers of its methods, by path."""
        return {"/grpc.health.v1.Health/Check": self._check, "/grpc.health.v1.Health/Watch": self._watch}

    def set(self, service: str, serving: Serving) -> None:
        """Change a service's state and notify its watchers."""
        if self._services.get(service) is serving:
            return
        self._services[service] = serving
        for call, watched in list(self._watchers.items()):
            if watched == service:
                call.send(call.encode_message(_encode_response(serving)))

    def close(self) -> None:
        """Notify the watchers and end their calls, so that stopping the server does not wait for them."""
        for service in list(self._services):
            self.set(service, Serving.NOT_SERVING)
        for call in list(self._watchers):
            call.fail(Status.UNAVAILABLE, "the server is stopping")

    def _check(self, call: Call, message: bytes) -> None:
        name = _decode_service(message)
        serving = None if name is None else self._services.get(name)
        if name is None:
            call.fail(Status.INTERNAL, "damaged HealthCheckRequest")
        elif serving is None:
            call.fail(Status.NOT_FOUND, f"unknown service {name}")
        else:
            call.reply(_encode_response(serving))

    def _watch(self, call: Call, message: bytes) -> None:
        name = _decode_service(message)
        if name is None:
            call.fail(Status.INTERNAL, "damaged HealthCheckRequest")
            return
        if len(self._watchers) >= _WATCHERS:
            slots = {watcher: watcher.connection.address for watcher in self._watchers}
            loser = choose_slot_to_free(slots, call.connection.address)
            (loser or call).fail(
                Status.UNAVAILABLE, f"{_WATCHERS} watches are open already, most of them from this address"
            )
            if loser is None:
                return
            self._watchers.pop(loser, None)
        self._watchers[call] = name
        call.on_end = lambda: self._forget(call)
        call.send(call.encode_message(_encode_response(self._services.get(name, Serving.SERVICE_UNKNOWN))))

    def _forget(self, call: Call) -> None:
        self._watchers.pop(call, None)
        call.finish_ok()


def _encode_response(serving: Serving) -> bytes:
    return bytes((0x08, serving))


def _decode_service(message: bytes) -> str | None:
    """HealthCheckRequest.service; None for any other message."""
    if not message:
        return ""
    if len(message) < 2 or message[0] != 0x0A or message[1] != len(message) - 2 or message[1] > 127:
        return None
    try:
        return message[2:].decode()
    except UnicodeDecodeError:
        return None
