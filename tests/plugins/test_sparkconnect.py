"""Sessions that their owner can find again after a kill."""

import uuid

from binlake_airflow.sparkconnect import session_id, with_session


def test_a_session_belongs_to_one_try_of_one_stage_of_one_run() -> None:
    first = session_id("orders", "land", "run 1", 1)
    assert first == session_id("orders", "land", "run 1", 1)
    others = {
        session_id("orders", "land", "run 1", 2),
        session_id("orders", "merge", "run 1", 1),
        session_id("orders", "land", "run 2", 1),
        session_id("order", "sland", "run 1", 1),
    }
    assert len(others | {first}) == 5
    # The server takes version 4 UUIDs only.
    assert uuid.UUID(first).version == 4


def test_the_url_keeps_its_parameters_and_gets_one_session() -> None:
    assert with_session("sc://h:1", "S") == "sc://h:1/;session_id=S"
    assert with_session("sc://h:1/", "S") == "sc://h:1/;session_id=S"
    assert with_session("sc://h:1/;token=t;use_ssl=true", "S") == "sc://h:1/;token=t;use_ssl=true;session_id=S"
    assert with_session("sc://h:1/;session_id=OLD", "S") == "sc://h:1/;session_id=S"
