"""The DAG of actions: which command an action becomes, and what a run that no page checked cannot do."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.dag_runs import HI, LO, Run, Runner
from support.replication_files import write_replication

from binlake_airflow.actions import ACT
from binlake_airflow.actiontable import ACTIONS
from binlake_airflow.dags.factory import build_dags

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("airflow_db")]

TLS = 'pd-urls = ["http://a:2379", "http://b:2379"]'


def prints(text: str, status: int = 0) -> dict[str, Any]:
    return {"ok": True, "status": status, "printed": text}


def act(run: Runner, command: str, answer: dict[str, Any], name: str, **fields: str) -> Run:
    return run({command: [answer]}, {"action": name, "fields": fields}, f".{ACT}", source=TLS)


def test_action_runs_the_command_that_the_page_shows(run: Runner) -> None:
    aside = [{"stage": "aside", "state": "set-aside", "lo": LO, "hi": LO, "rows": 0, "detail": {}}]
    done = act(run, "table", prints(json.dumps(aside)), "table-aside", table="shop.item", reason="too narrow")
    (call,) = done.calls
    assert (done.state, done.note) == ("success", "table-aside: table shop.item, reason too narrow")
    assert call["options"].pop("--replication").endswith("orders.toml")
    assert call["options"].pop("--result").endswith("result.json")
    assert call["options"] == {"0": "aside", "--table": "shop.item", "--reason": "too narrow", "--output": "json"}
    assert done.xcom(ACT)[0]["state"] == "set-aside"


def test_command_to_a_pump_is_given_pd_and_prints_text(run: Runner) -> None:
    done = act(run, "txn", prints("decided\nWARNING: x"), "txn-resolve", pump="pump-1", start_ts=LO,
               outcome="committed", commit_ts=HI)  # fmt: skip
    (call,) = done.calls
    assert call["options"].pop("--result")
    assert call["options"] == {"0": "resolve", "1": LO, "--commit-ts": HI, "--pump": "pump-1",
                               "--pd-urls": "http://a:2379,http://b:2379"}  # fmt: skip
    assert done.xcom(ACT) == ["decided", "WARNING: x"]
    paused = act(run, "pause-drainer", prints("paused"), "registry-pause")
    assert paused.calls[0]["options"]["--node-id"] == "binlake-orders"


@pytest.mark.parametrize(
    ("name", "fields"),
    [("table-aside", {"table": "--output.x"}), ("table-aside", {}), ("pump-pause", {"pump": "--help"}),
     ("table-aside", {"table": "a.b", "more": "x"})],
    ids=["option", "missing", "help", "unknown field"],
)  # fmt: skip
def test_fields_are_checked_again_before_anything_runs(run: Runner, name: str, fields: dict[str, str]) -> None:
    done = act(run, "table", prints(""), name, **fields)
    assert (done.state, done.calls) == ("failed", [])
    # An action that fails says nothing about the replication.
    assert done.tries(ACT) == 0


def test_dag_offers_only_what_the_replication_has(folder: Path) -> None:
    names = {}
    for text, target in (("with", 'db-type = "mariadb"'), ("without", None)):
        dags = build_dags(write_replication(folder, text, target=target))
        names[text] = set(dags[f"{text}.{ACT}"].params.get_param("action").schema["enum"])
    assert names["with"] == {one.name for one in ACTIONS.values() if one.way == ACT}
    assert names["with"] - names["without"] == {
        "table-aside",
        "table-back",
        "ddl-release",
        "ddl-replace",
        "ddl-skip",
        "lock-resolve",
    }
