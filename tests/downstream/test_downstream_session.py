"""A connection to the target costs a round trip or two, and no reading of certificates."""

from __future__ import annotations

import ssl

import pytest

from binlake.config.model import Target
from binlake.downstream import Session
from binlake.downstream.session import _Link

pytestmark = pytest.mark.mariadb


def test_connections_share_one_context_for_tls(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    # Each would read all certificates of the system: 22 ms of CPU
    made: list[int] = []
    make = ssl.create_default_context
    monkeypatch.setattr(_Link, "_context", None)
    monkeypatch.setattr(ssl, "create_default_context", lambda **places: made.append(1) or make(**places))
    for _ in range(3):
        session = Session(target)
        assert session.rows("SELECT 1") == [(1,)]
        session.close()
    assert made == [1]
