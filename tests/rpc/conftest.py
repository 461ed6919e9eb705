"""A server for fuzzing that records the exceptions of its loop."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from rpc_helpers import serving


@pytest.fixture(scope="module")
def fuzz_server() -> Iterator[tuple[str, list[str]]]:
    """The server's address, and the exceptions that reached its loop, of which there must be none."""
    errors: list[str] = []
    with serving() as (server, address):
        server._loop.set_exception_handler(lambda _, context: errors.append(str(context)))
        yield address, errors
    assert not errors
