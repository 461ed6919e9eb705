"""A server for fuzzing that remembers what its loop could not handle."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from rpc_helpers import serving


@pytest.fixture(scope="module")
def fuzz_server() -> Iterator[tuple[str, list[str]]]:
    """Address, and the exceptions that reached the loop: there must be none."""
    errors: list[str] = []
    with serving() as (server, address):
        server._loop.set_exception_handler(lambda _, context: errors.append(str(context)))
        yield address, errors
    assert not errors
