"""Fixtures of the Airflow shell's tests."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.airflow_home import private_home

private_home()


@pytest.fixture(scope="session")
def airflow_db() -> Path:
    """A migrated metadata database in the private home, which it returns."""
    from airflow.utils.db import initdb

    initdb()
    return private_home()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of replications that the shell reads."""
    place = tmp_path / "replications"
    place.mkdir()
    monkeypatch.setenv("BINLAKE_REPLICATIONS", str(place))
    return place
