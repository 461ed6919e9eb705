"""The Spark shell's tests find their helpers beside them; the Spark session is that of all rooms."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

sys.path.insert(0, str(Path(__file__).resolve().parent))


@pytest.fixture(autouse=True)
def _logs_of_each_test() -> Iterator[None]:
    """The dispatcher sends logs to the stderr of its time, which pytest closes behind the test."""
    yield
    structlog.reset_defaults()
