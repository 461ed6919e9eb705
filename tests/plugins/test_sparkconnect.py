"""Spark Connect sessions that their owner can find again after a kill."""

import uuid

import pytest

from binlake.common.reachability import SPARK_TOKEN_ENV
from binlake.spark_jobs.engine.connect import _add_token
from binlake_airflow.operators.spark import SPAN_S, add_session, derive_session_id, list_sessions_between, split_token


def test_session_id_depends_on_stage_and_time() -> None:
    first = derive_session_id("orders", "land", 0)
    assert first == derive_session_id("orders", "land", SPAN_S - 0.5)
    others = {
        derive_session_id("orders", "land", SPAN_S),
        derive_session_id("orders", "merge", 0),
        derive_session_id("order", "sland", 0),
    }
    assert len(others | {first}) == 4
    # The server accepts only version 4 UUIDs.
    assert uuid.UUID(first).version == 4


def test_retry_finds_every_session_since_its_run_started() -> None:
    found = list_sessions_between("orders", "land", 1.5 * SPAN_S, 3.1 * SPAN_S)
    assert found == [derive_session_id("orders", "land", span * SPAN_S) for span in (1, 2, 3)]


def test_url_keeps_its_parameters_and_gets_one_session() -> None:
    assert add_session("sc://h:1", "S") == "sc://h:1/;session_id=S"
    assert add_session("sc://h:1/", "S") == "sc://h:1/;session_id=S"
    assert add_session("sc://h:1/;token=t;use_ssl=true", "S") == "sc://h:1/;token=t;use_ssl=true;session_id=S"
    assert add_session("sc://h:1/;session_id=OLD", "S") == "sc://h:1/;session_id=S"


def test_token_is_not_on_a_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    shown, env = split_token("sc://h:1/;token=t%3B;use_ssl=true;session_id=S")
    assert shown == "sc://h:1/;use_ssl=true;session_id=S"
    assert split_token("sc://h:1/;token=t") == ("sc://h:1", {SPARK_TOKEN_ENV: "t"})
    assert split_token("sc://h:1/;session_id=S") == ("sc://h:1/;session_id=S", {})
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert _add_token(shown) == "sc://h:1/;use_ssl=true;session_id=S;token=t%3B"
    assert _add_token("sc://h:1") == "sc://h:1/;token=t%3B"
