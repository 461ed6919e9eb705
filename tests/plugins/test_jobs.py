"""What an operator passes to a job, and how it interprets the answer."""

import json
from pathlib import Path

import pytest

from binlake import tso
from binlake.errors import (
    BinlakeError,
    ConfigError,
    Fenced,
    IncompleteWindow,
    Permanent,
    Transient,
    UnknownOutcome,
)
from binlake.lake.tables import STAGE_TABLES
from binlake.pipeline import (
    BY_NAME,
    FEEDS,
    LAKE,
    MIRROR,
    SINKS,
    SQL,
    STAGES,
    label_sink,
    list_locks,
    list_required_stages,
    look_up_lock,
    name_feed_sink,
)
from binlake_airflow.jobs import StageJob, build_error, is_idle, parse_moment, read_results

BIG = "449000000000000001"


def test_arguments_contain_only_known_values() -> None:
    plan = StageJob("plan", "/r/orders.toml", "run 1", stop_ts=BIG)
    assert plan.build_arguments(Path("/t/r.json")) == [
        "plan", "--replication", "/r/orders.toml", "--run-id", "run 1", "--stop-ts", BIG, "--result", "/t/r.json",
    ]  # fmt: skip
    merge = StageJob("merge", "/r/orders.toml", "run 1", lo="1", hi=BIG)
    assert merge.build_arguments(Path("r"), remote="sc://h:1/;k=v")[-4:] == [
        "--remote",
        "sc://h:1/;k=v",
        "--result",
        "r",
    ]
    assert [merge.build_arguments(Path("r"))[i : i + 2] for i in (5, 7)] == [["--lo", "1"], ["--hi", BIG]]


def test_only_plan_finalize_validate_and_publish_do_without_spark() -> None:
    without = {name for name in BY_NAME if not StageJob(name, "f", "r").needs_spark}
    assert without == {"plan", "finalize", "validate", "publish"}
    assert StageJob("window", "f", "r").needs_spark


def test_every_stage_takes_its_bounds_from_an_earlier_stage() -> None:
    def before(name: str) -> set[str]:
        return {other for up in BY_NAME[name].after for other in (up, *before(up))}

    for stage in STAGES:
        assert stage.name == "plan" or stage.bounds_from in before(stage.name)
    # compact determines the sink's window, which is wider than the landed one if the sink is behind.
    assert {BY_NAME[name].bounds_from for name in ("convert", "finalize")} == {"compact"}
    only_mirror = (*LAKE.stages, *MIRROR.stages)
    assert {stage.bounds_from for stage in only_mirror} - {None} <= {stage.name for stage in only_mirror}


def test_each_sink_is_moved_by_the_last_stage_that_it_requires() -> None:
    assert {name: sink.moved_by for name, sink in SINKS.items()} == {
        name: list_required_stages(name)[-1] for name in SINKS
    }
    assert {stage.sink for stage in STAGES} == {None, *SINKS}


def test_sinks_have_names_for_people() -> None:
    assert [label_sink(sink) for sink in (None, "", "sql", "mirror", name_feed_sink("orders"))] == [
        "lake", "lake", "target", "mirrors", "feed orders",
    ]  # fmt: skip


def test_stage_waits_for_its_own_lock_and_the_whole_window_for_all() -> None:
    assert {name: list_locks([BY_NAME[name]]) for name in ("plan", "land", "compact", "convert", "finalize")} == {
        "plan": (), "land": ("landing",), "compact": ("sql",), "convert": ("sql",), "finalize": (),
    }  # fmt: skip
    assert list_locks((*LAKE.stages, *SQL.stages[:3], *MIRROR.stages)) == ("landing", "merge", "sql", "mirror")
    assert "validation" in list_locks(SQL.stages)


def test_each_feed_has_its_own_stages_and_lock() -> None:
    stages = [stage for sink in (LAKE, FEEDS.bind("orders"), FEEDS.bind("audit")) for stage in sink.stages]
    assert list_locks(stages) == ("landing", "merge", "feed-orders", "feed-audit")
    assert [stage.task for stage in stages if stage.sink == name_feed_sink("audit")] == [
        "encode-audit",
        "publish-audit",
    ]
    of_audit = {stage.name: stage for stage in stages if stage.feed == "audit"}
    assert (of_audit["encode"].after, of_audit["publish"].after) == (("merge",), ("encode-audit",))
    assert (of_audit["encode"].bounds_from, of_audit["publish"].bounds_from) == ("land", "encode-audit")


def test_every_table_of_a_window_has_one_lock_that_its_writer_takes() -> None:
    written = [table for stage in STAGES for table in stage.writes]
    assert len(written) == len(set(written))
    assert {table.name for table in STAGE_TABLES} <= set(written)
    for stage in STAGES:
        assert bool(stage.writes) <= bool(stage.lock)
        assert {look_up_lock(table) for table in stage.writes} <= {stage.lock}
        assert stage.counts in ("", *stage.writes)
        # Every table that a stage reads is written by an earlier stage.
        assert set(stage.reads) <= set(written)


def test_results_are_read_as_written(tmp_path: Path) -> None:
    result = tmp_path / "r.json"
    result.write_text(json.dumps({"ok": True, "results": [{"stage": "plan", "lo": BIG}]}))
    assert read_results(result, "exit status 0") == [{"stage": "plan", "lo": BIG}]


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({"kind": "Permanent", "class": "Fenced", "message": "m"}, Fenced),
        ({"kind": "Transient", "class": "IncompleteWindow", "message": "m"}, IncompleteWindow),
        ({"kind": "UnknownOutcome", "class": "UnknownOutcome", "message": "m"}, UnknownOutcome),
        # For a class of a newer release, or a name that is not an error class, the kind decides.
        ({"kind": "Permanent", "class": "NotYetKnown", "message": "m"}, Permanent),
        ({"kind": "Transient", "class": "Mapping", "message": "m"}, Transient),
    ],
)
def test_error_of_a_job_is_raised_with_its_class(
    tmp_path: Path, told: dict[str, str], expected: type[BinlakeError]
) -> None:
    result = tmp_path / "r.json"
    result.write_text(json.dumps({"ok": False, "error": told}))
    with pytest.raises(expected, match=r"^m$") as caught:
        read_results(result, "exit status 1")
    assert type(caught.value) is expected
    assert type(build_error(told)) is expected


def test_dead_job_is_retryable(tmp_path: Path) -> None:
    with pytest.raises(Transient, match="exit status -9"):
        read_results(tmp_path / "absent.json", "exit status -9")


MINUTE = 29_918_880


@pytest.mark.parametrize(
    ("lo_s", "hi_s", "more", "idle"),
    [(1, 59, {}, True), (1, 60, {}, False), (-1, 59, {}, False), (1, 59, {"rows": 1}, False),
     (1, 59, {"state": "already"}, False), (1, 180, {}, False)],
    ids=["inside an interval", "ends an interval", "from the interval before", "with rows", "already done",
         "longer than an interval"],
)  # fmt: skip
def test_empty_window_is_idle_until_an_interval_of_commit_time_ends_in_it(
    lo_s: int, hi_s: int, more: dict[str, object], idle: bool
) -> None:
    lo, hi = (tso.compose((MINUTE * 60 + second) * 1000, 7) for second in (lo_s, hi_s))
    landed = {"state": "done", "rows": 0, "lo": str(lo), "hi": str(hi), **more}
    assert is_idle(landed, 60, ()) is idle
    assert not is_idle(landed, 0, ())
    assert not is_idle(landed, 60, (hi,))


def test_param_is_a_commit_ts_a_time_or_empty() -> None:
    assert (parse_moment(None), parse_moment(""), parse_moment(BIG)) == (None, None, BIG)
    last = str(tso.compose(1795132800000, tso.MAX_LOGICAL))
    assert (
        parse_moment("2026-11-20T00:00:00Z")
        == parse_moment("2026-11-20")
        == parse_moment("2026-11-20T02:00:00+02:00")
        == last
    )
    for wrong in ("2026-13-01", "20261121"):
        with pytest.raises(ConfigError, match="neither a commit_ts nor a time"):
            parse_moment(wrong)


@pytest.mark.parametrize(("tables", "kept"), [(200, 200), (201, 0)])
def test_window_of_too_many_tables_names_none(tmp_path: Path, tables: int, kept: int) -> None:
    result, changed = tmp_path / "result.json", [["shop", f"t{n}"] for n in range(tables)]
    result.write_text(json.dumps({"ok": True, "results": [{"stage": "compact", "detail": {"changed": changed}}]}))
    (found,) = read_results(result, "")
    assert len(found["detail"]["changed"]) == kept
