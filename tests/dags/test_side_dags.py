"""The side DAGs: which command a form becomes, and what is stored of its answer. Commands are scripted."""

import json
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import ParamValidationError
from support.dag_runs import HI, LO, LOWERED, Run, Runner, answer, failure
from support.replication_files import write_replication

from binlake.errors import ConfigError
from binlake_airflow.jobs import MOST_ROWS
from binlake_airflow.operators.commands import BackfillOperator

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("airflow_db")]


def as_output(value: Any, status: int = 0) -> dict[str, Any]:
    return {"ok": True, "status": status, "printed": "" if value is None else json.dumps(value)}


def options(done: Run) -> dict[str, str]:
    (call,) = done.calls
    assert call["options"].pop("--replication").endswith("orders.toml")
    assert call["options"].pop("--result").endswith("result.json")
    assert call["options"].pop("--output") == "json"
    return dict(call["options"])


def change(n: int) -> dict[str, Any]:
    return {"commit_ts": str(int(LO) + n), "commit_time": "t", "start_ts": "1", "op": "update", "db": "shop",
            "table": "item", "before": {"id": "7"}, "after": {"id": "7", "name": "<b>|"}}  # fmt: skip


def test_audit_of_a_row(run: Runner) -> None:  # C-07
    done = run({"audit": [as_output([change(n) for n in range(MOST_ROWS + 5)])]},
               {"what": "row", "table": "shop.item", "key": ["7", "a b"], "at": HI}, ".audit")  # fmt: skip
    assert done.state == "success"
    assert options(done) == {"0": "row", "1": "shop.item", "2": '["7", "a b"]', "--at": HI}
    kept = done.xcom("audit")
    assert (len(kept["changes"]), kept["left_off"]) == (MOST_ROWS, {"changes": 5})
    assert kept["changes"][1]["commit_ts"] == str(int(LO) + 1)
    page = done.xcom("audit", "markdown")
    assert page.startswith('### row shop.item ["7", "a b"]: 100 changes')
    # A row's values must not be interpreted as markup.
    assert "&lt;b>\\|" in page
    assert "85 more" in page
    assert done.note == 'row shop.item ["7", "a b"]: 100 changes'


def test_audit_of_a_table_converts_a_time_to_a_commit_ts(run: Runner) -> None:
    rows = {"as_of": HI, "time": "2026-11-20T00:00:00.000Z", "columns": ["id", "v"], "rows": [["1", None]]}
    done = run({"audit": [as_output(rows)]},
               {"what": "table", "table": "shop.item", "at": "2026-11-20T00:00:00Z"}, ".audit")  # fmt: skip
    # The last commit_ts of that millisecond.
    assert options(done) == {"0": "table", "1": "shop.item", "--at": str((1795132800000 << 18) + 2**18 - 1)}
    assert "| id | v |\n|---|---|\n| 1 | NULL |" in done.xcom("audit", "markdown")


def test_audit_without_a_result_succeeds(run: Runner) -> None:
    done = run({"audit": [as_output(None, status=3)]}, {"what": "transaction", "commit_ts": LO}, ".audit")
    assert (done.state, options(done)) == ("success", {"0": "transaction", "1": LO})
    assert done.note == f"transaction {LO}: nothing found"


@pytest.mark.parametrize("conf", [{"what": "row"}, {"what": "row", "table": "a.b"}, {"what": "table", "table": "a.b"},
                                  {"what": "transaction"}],
                         ids=["row without table", "row without key", "table without time",
                              "transaction without commit_ts"])  # fmt: skip
def test_audit_without_an_object_fails_at_once(run: Runner, conf: dict[str, Any]) -> None:
    done = run({"audit": [as_output([])]}, conf, ".audit")
    assert (done.state, done.calls) == ("failed", [])


def verify_result(state: str, **wrong: int) -> list[dict[str, Any]]:
    detail = {"against": "lake", "tables": 1, "missing": 0, "extra": 0, "different": 0, **wrong}
    return answer("verify", HI, HI, state, detail=detail)["results"]


def test_verify_fails_the_run_on_differences_and_shows_them(run: Runner) -> None:
    conf = {"tables": ["shop.item"], "sample": 0.5, "against": "source"}
    done = run({"verify": [as_output(verify_result("equal"))]}, conf, ".verify")
    assert options(done) == {"--against": "source", "--sample": "0.5", "--run-id": done.run_id, "--wait": "30",
                             "--table": "shop.item"}  # fmt: skip
    assert done.note == f"verify: equal at {HI} = 2026-11-20T00:00:00.000Z, 3 rows compared"
    wrong = run({"verify": [as_output(verify_result("different", missing=2, extra=1), status=4)]}, None, ".verify")
    assert (wrong.state, wrong.tries("verify")) == ("failed", 1)
    assert wrong.xcom("verify")["changes"][0]["detail"]["missing"] == 2
    fixed = run({"verify": [as_output(verify_result("different", missing=2))]}, {"fix": True}, ".verify")
    assert (fixed.state, options(fixed)["--fix"]) == ("success", "true")
    assert "different, repaired" in str(fixed.note)


def test_schedule_of_verify_takes_its_sample_from_the_configuration(run: Runner) -> None:
    own = "wait-s = 7\n[airflow.verify]\nsample = 0.25"
    done = run({"verify": [as_output(verify_result("equal"))]}, None, ".verify", airflow=own)
    assert options(done)["--sample"] == "0.25"


def test_maintain_runs_where_spark_is(run: Runner) -> None:
    kept = [{"table": "binlog", "joined": 4, "dropped": 1, "windows": 0, "seconds": 0.1}]
    done = run({"maintain": [as_output(kept)]}, None, ".maintain")
    assert options(done) == {"--master": "local[1]"}
    assert done.note == "maintain: 4 files joined, 1 dropped"
    remote = run(
        {"maintain": [as_output(kept)]}, None, ".maintain", airflow='engine = "connect"\nspark-conn-id = "connect"'
    )
    assert options(remote)["--remote"].startswith("sc://h:1/;session_id=")


RANGE = {"from": LO, "to": LOWERED}


@pytest.mark.parametrize(
    ("conf", "more"),
    [({"mode": "rebuild"}, {"--through": "merge", "--master": "local[1]"}),
     ({"mode": "repair"}, {"--wait": "1"}),
     ({"mode": "rollback", "force": True}, {"--write-to": "target", "--wait": "1", "--force": "true"}),
     ({"mode": "emit", "feed": "a", "topic": "x_{schema}_{table}"},
      {"--feed": "a", "--topic": "x_{schema}_{table}", "--master": "local[1]"})],
    ids=["rebuild", "repair", "rollback", "emit"],
)  # fmt: skip
def test_backfill_gets_its_range_from_the_form(run: Runner, conf: dict[str, Any], more: dict[str, str]) -> None:
    # C-05: the run's id names its progress, so that a cleared run resumes.
    done = run({"backfill": [as_output(answer("backfill", LO, LOWERED)["results"])]}, {**conf, **RANGE}, ".backfill")
    own = {"0": conf["mode"], "--from": LO, "--to": LOWERED, "--run-id": done.run_id}
    assert options(done) == {**own, **more}
    assert done.xcom("backfill", "range") == f"{LO}-{LOWERED}"
    assert done.note is not None
    assert done.note.startswith(f"{conf['mode']} ({LO} = 2026-11-20T00:00:00.000Z, {LOWERED} = ")


def test_backfill_of_one_transaction_names_its_commit_ts(run: Runner) -> None:  # U-12
    done = run({"backfill": [as_output(answer("backfill", LO, HI)["results"])]}, {"commit_ts": HI}, ".backfill")
    assert options(done)["--from"] == str(int(HI) - 1)
    assert done.xcom("backfill", "range") == f"{int(HI) - 1}-{HI}"


def test_replay_names_another_replication_and_never_a_path(run: Runner, folder: Path) -> None:
    write_replication(folder, "copy")
    script = {"backfill": [as_output(answer("finalize", LO, LOWERED)["results"])]}
    done = run(script, {"mode": "replay", "into": "copy", **RANGE}, ".backfill")
    assert options(done)["--into"] == str(folder / "copy.toml")
    nobody = run(script, {"mode": "replay", "into": "nobody", **RANGE}, ".backfill")
    assert (nobody.state, nobody.calls) == ("failed", [])
    with pytest.raises(ParamValidationError):
        run(script, {"mode": "replay", "into": "/etc/passwd", **RANGE}, ".backfill")


def test_bootstrap_follows_the_load_and_reports_its_result(run: Runner) -> None:
    load = {"source": "shard-1", "state": "done", "rows": 12_345, "tables": 2, "from_ts": LO, "commit_ts": HI}
    done = run({"bootstrap": [as_output({"phase": "landed", "loads": [load]})]}, {"until": "landed"}, ".bootstrap")
    assert (done.state, options(done)) == ("success", {"--until": "landed", "--run-id": done.run_id})
    assert done.note.startswith("bootstrap: 12,345 rows of 1 sources landed, base at ")


def test_restore_passes_base_time_and_target(run: Runner, folder: Path) -> None:
    write_replication(folder, "copy")
    results = answer("finalize", LO, LOWERED)["results"]
    results[-1]["detail"]["inexact"] = {"shop.t": "its first rows are not in the lake"}
    conf = {"to": "2026-11-20T00:00:00Z", "base": "/dumps/monday", "into": "copy"}
    done = run({"restore": [as_output(results)]}, conf, ".restore")
    assert done.state == "success"
    found = options(done)
    assert (found["--base"], found["--into"]) == ("/dumps/monday", str(folder / "copy.toml"))
    assert found["--to"].isdecimal()
    assert done.note.startswith(f"restore: the database is at {LOWERED} = ")
    assert done.note.endswith("; known in part: shop.t")
    with pytest.raises(ParamValidationError):
        run({"restore": [as_output(results)]}, {"base": "--to"}, ".restore")


def test_load_by_sql_gets_its_time_and_spark(run: Runner) -> None:  # S4-24
    load = {"source": "tidb", "state": "done", "rows": 7, "tables": 1, "from_ts": LO, "commit_ts": HI}
    sql = '[source.sql]\nhost = "127.0.0.1"'
    script = {"bootstrap": [as_output({"phase": "landed", "loads": [load]})]}
    done = run(script, {"until": "landed", "at": HI}, ".bootstrap", airflow=sql)
    own = {"--until": "landed", "--at": HI, "--master": "local[1]", "--run-id": done.run_id}
    assert (done.state, options(done)) == ("success", own)


def test_rebuild_with_another_result_fails_the_run(run: Runner) -> None:
    changed = answer("merge", LO, LOWERED, "changed")["results"]
    done = run({"backfill": [as_output(changed, status=4)]}, {"mode": "rebuild", **RANGE}, ".backfill")
    assert (done.state, done.tries("backfill")) == ("failed", 1)
    assert done.xcom("backfill")["changes"][0]["state"] == "changed"


def test_backfill_without_a_range_fails_at_once(run: Runner) -> None:
    done = run({"backfill": [as_output([])]}, {"mode": "repair"}, ".backfill")
    assert (done.state, done.calls) == ("failed", [])


def test_backfill_of_dates_gets_its_range_from_the_interval() -> None:  # C-05
    task = BackfillOperator(task_id="backfill", replication="orders", replication_file="/r.toml", engine="submit",
                            spark_conn_id="spark")  # fmt: skip

    class Left:
        def xcom_push(self, key: str, value: str) -> None:
            self.pushed = (key, value)

    day = datetime(2026, 11, 20, tzinfo=UTC), datetime(2026, 11, 21, tzinfo=UTC)
    context = {"params": {"mode": "repair"}, "ti": Left(), "run_id": "backfill__1", "data_interval_start": day[0],
               "data_interval_end": day[1]}  # fmt: skip
    start, end = (1795132800000 << 18) - 1, ((1795132800000 + 86_400_000) << 18) - 1
    assert task.build_arguments(context)[:5] == ["repair", "--from", str(start), "--to", str(end)]
    with pytest.raises(ConfigError, match="needs `from` and `to`"):
        task.build_arguments({**context, "data_interval_end": day[0]})


@pytest.mark.parametrize(
    ("params", "error"),
    [({"mode": "repair", "from": LO, "to": HI}, "set twice"),
     ({"mode": "rollback", "from": LO}, "set twice"),
     ({"mode": "rollback", "to": HI}, "set twice"),
     ({"mode": "rebuild"}, "rebuild takes no `commit_ts`"),
     ({"mode": "replay", "into": "copy"}, "replay takes no `commit_ts`")],
    ids=["repair with range", "rollback with from", "rollback with to", "rebuild", "replay"],
)  # fmt: skip
def test_commit_ts_of_one_transaction_excludes_a_range(params: dict[str, Any], error: str) -> None:  # U-12
    task = BackfillOperator(task_id="backfill", replication="orders", replication_file="/r.toml", engine="submit",
                            spark_conn_id="spark")  # fmt: skip
    ti = SimpleNamespace(xcom_push=lambda **_: None)
    all_params = {"through": "merge", "write_to": "file", "force": False, **params, "commit_ts": HI}
    with pytest.raises(ConfigError, match=error):
        task.build_arguments({"params": all_params, "ti": ti, "run_id": "r"})


def test_killed_command_is_retried_and_errors_keep_their_class(run: Runner) -> None:
    died = run({"maintain": [{"exit": 137}, as_output([])]}, None, ".maintain")
    assert (died.state, died.tries("maintain")) == ("success", 2)
    refused = run({"maintain": [failure("Permanent", "ConfigError")]}, None, ".maintain")
    assert (refused.state, refused.tries("maintain")) == ("failed", 1)
