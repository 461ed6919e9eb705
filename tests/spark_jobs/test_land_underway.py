"""Rows that have seen a running DDL stay outside the window until a history contains it."""  # R-19 R-20

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from binlake.cluster.source import StatusPort, TidbSource
from binlake.cluster.source.ddlhistory import (
    VERSION_KEY,
    encode_meta_key,
    encode_step_key,
    parse_newest_version,
    parse_step,
)
from binlake.errors import IncompleteWindow, SourceUnavailable, WireError
from binlake.rows.schema import Action, DdlJob, SchemaState
from binlake.rows.schema.window import compute_running_ts
from binlake.spark_jobs.job.results import Bounds
from binlake.spark_jobs.land.ddljobs import _lower_before_running_ddl, _read_newer_jobs, ask_underway

Json = dict[str, Any]
PUBLIC, WRITE_ONLY, WRITE_REORG = 5, 2, 3
TABLE = 10


def column(number: int, name: str, state: int = PUBLIC, flen: int = 20) -> Json:
    kind = {"Tp": 8, "Flag": 0, "Flen": flen, "Decimal": 0, "Charset": "binary", "Collate": "binary", "Elems": None}
    return {"id": number, "name": {"O": name, "L": name}, "offset": number - 1, "origin_default": None,
            "origin_default_bit": None, "default": None, "default_bit": None, "default_is_expr": False,
            "generated_expr_string": "", "generated_stored": False, "type": kind, "state": state, "comment": "",
            "hidden": False}  # fmt: skip


def index(number: int, name: str, state: int = PUBLIC) -> Json:
    return {"id": number, "idx_name": {"O": name, "L": name}, "idx_cols": [], "state": state, "is_unique": True,
            "is_primary": False}  # fmt: skip


def table(columns: Sequence[Json], indexes: Sequence[Json] = (), table_id: int = TABLE, **more: object) -> Json:
    return {"id": table_id, "name": {"O": f"t{table_id}", "L": f"t{table_id}"}, "charset": "utf8mb4",
            "collate": "utf8mb4_bin", "cols": list(columns), "index_info": list(indexes), "state": PUBLIC,
            "pk_is_handle": False, "is_common_handle": False, "comment": "", "partition": None, **more}  # fmt: skip


PLAIN = table([column(1, "a")], [index(1, "u")])


def job(number: int, version: int, info: Json | None, *, began: int, end: int, action: int = 3, state: int = 6) -> Json:
    binlog = {"SchemaVersion": version, "FinishedTS": end, "TableInfo": info}
    return {"id": number, "type": action, "state": state, "schema_id": 2, "table_id": info["id"] if info else TABLE,
            "schema_name": "d", "table_name": "t", "query": "", "start_ts": began, "real_start_ts": began,
            "binlog": binlog}  # fmt: skip


@dataclass
class Tidb(StatusPort):
    """A TiDB's status port: its meta keys, its history, and the schema version that one of its servers has loaded."""

    jobs: list[Json]
    shown: dict[int, Json]
    steps: Mapping[int, tuple[int, int, int]]
    """version: commit_ts, kind, table id."""
    newest: int = 0
    loaded: int = 0
    locked: Sequence[int] = ()
    asked: list[str] = field(default_factory=list)

    def find(self, path: str, missing: object = ()) -> str | None:
        del missing
        self.asked.append(path)
        if path.startswith("/ddl/history"):
            below = int(path.partition("start_job_id=")[2].partition("&")[0] or 1 << 60)
            return json.dumps(sorted((j for j in self.jobs if j["id"] < below), key=lambda j: -int(j["id"])))
        if path.startswith("/db-table/"):
            info = self.shown.get(int(path.rpartition("/")[2]))
            answer = {"table_info": info, "schema_version": self.loaded or self._version()}
            return None if info is None else json.dumps(answer)
        return json.dumps({"key": "", "region_id": 2, "value": {"info": self._record(path.rpartition("/")[2])}})

    def close(self) -> None:
        pass

    def _version(self) -> int:
        return self.newest or max(self.steps, default=0)

    def _record(self, key: str) -> Json:
        if key == VERSION_KEY.hex():
            return written(self._version() * 100, str(self._version())) if self._version() else {}
        version = next((number for number in self.steps if encode_step_key(number).hex() == key), 0)
        if version in self.locked:
            return {"lock": {"start_ts": self.steps[version][0] - 1, "primary": ""}}
        if not version:
            return {}
        commit_ts, kind, table_id = self.steps[version]
        return written(commit_ts, json.dumps({"version": version, "type": kind, "schema_id": 2, "table_id": table_id}))


def written(commit_ts: int, value: str) -> Json:
    return {"writes": [{"start_ts": commit_ts - 1, "commit_ts": commit_ts,
                        "short_value": base64.b64encode(value.encode()).decode()}]}  # fmt: skip


@dataclass
class Rows:
    """Stands for a pull: (commit_ts, schema version) of row changes."""

    found: tuple[tuple[int, int], ...]

    def find_first_row(self, since: int, version: int = 0) -> int | None:
        return min((ts for ts, own in self.found if ts >= since and own >= version), default=None)


class History:
    """A history read by SQL: it lists running jobs."""

    def __init__(self, port: Tidb, running: list[Json]) -> None:
        self._port, self._running = port, running

    def fetch_page(self, below: int) -> list[Json]:
        return sorted((j for j in self._port.jobs if not below or j["id"] < below), key=lambda j: -int(j["id"]))

    def fetch_by_id(self, ids: Any) -> dict[int, Json]:
        return {j["id"]: j for j in self._port.jobs if j["id"] in ids}

    def fetch_running(self) -> list[Json]:
        return self._running

    def close(self) -> None:
        pass


class Clock:
    def fetch_ts(self, count: int = 1) -> int:
        raise AssertionError(count)


DATABASE = {"id": 2, "db_name": {"O": "d", "L": "d"}, "charset": "utf8mb4", "collate": "utf8mb4_bin"}
CREATE_DB = {**job(1, 1, None, began=90, end=100, action=1), "table_id": 0,
             "binlog": {"SchemaVersion": 1, "FinishedTS": 100, "DBInfo": DATABASE}}  # fmt: skip
CREATE = job(2, 2, PLAIN, began=190, end=200)


def hi_of(port: Tidb, rows: Rows, hi: int, lo: int = 250, history: History | None = None) -> int:
    source = TidbSource(Clock(), "http://127.0.0.1:1", history=history)
    if history is None:
        source._history._port = port  # type: ignore[attr-defined]
    source.port = port
    state = SchemaState().fold((j["binlog"]["FinishedTS"], DdlJob.from_dict(j)) for j in port.jobs[:2])
    underway = ask_underway(source, state.version, hi)
    newer = _read_newer_jobs(source, state, hi)
    return _lower_before_running_ddl(rows, Bounds(lo, hi), state, newer, underway)  # type: ignore[arg-type]


def tidb(shown: Json | None, steps: Mapping[int, tuple[int, int, int]], *jobs: Json, **more: Any) -> Tidb:
    return Tidb([CREATE_DB, CREATE, *jobs], {TABLE: shown} if shown else {}, steps, **more)


DROPPING = table([column(1, "a")], [index(1, "u", WRITE_ONLY)])
ADDING = table([column(1, "a"), column(2, "b", WRITE_REORG)], [index(1, "u"), index(2, "v", WRITE_REORG)])


def test_row_of_an_old_transaction_waits_for_the_drop_index_that_it_has_seen() -> None:
    steps = {3: (300, Action.DROP_INDEX, TABLE), 4: (310, Action.DROP_INDEX, TABLE)}
    # The row's version is that of its BEGIN, before the DDL, so its binlog shows nothing. The clock is hours ahead.
    rows = Rows(((260, 2), (320, 2), (9_000_000, 2)))
    assert hi_of(tidb(DROPPING, steps), rows, 10_000_000) == 319
    with pytest.raises(IncompleteWindow, match=r"a DDL is running.*commit_ts=320.*metadata lock"):
        hi_of(tidb(DROPPING, steps), rows, 10_000_000, lo=319)


def test_running_ddl_holds_rows_only_after_its_steps() -> None:
    steps = {3: (300, Action.DROP_INDEX, TABLE)}
    assert hi_of(tidb(DROPPING, steps), Rows(((260, 2),)), 400) == 400
    with pytest.raises(IncompleteWindow, match="a DDL is running"):
        hi_of(tidb(DROPPING, steps), Rows(((401, 2),)), 500, lo=400)


def test_steps_above_hi_hold_no_rows() -> None:
    port = tidb(DROPPING, {3: (300, Action.DROP_INDEX, TABLE), 4: (310, Action.DROP_INDEX, TABLE)})
    assert hi_of(port, Rows(((260, 2), (320, 2))), 299) == 299
    assert encode_step_key(4).hex() not in "".join(port.asked)


def test_long_running_copy_holds_no_rows_that_do_not_depend_on_it() -> None:
    steps = {3: (300, Action.ADD_INDEX, TABLE), 4: (310, Action.ADD_COLUMN, TABLE)}
    assert hi_of(tidb(ADDING, steps), Rows(((305, 3), (400, 4))), 500) == 500


def test_steps_not_loaded_by_the_server_are_assumed_visible() -> None:
    steps = {3: (300, Action.ADD_INDEX, TABLE), 4: (310, Action.ADD_COLUMN, TABLE)}
    assert hi_of(tidb(ADDING, steps, loaded=3), Rows(((305, 3), (400, 4))), 500) == 304


@pytest.mark.parametrize(
    "shown",
    [table([column(1, "a"), column(2, "b")], [index(1, "u")]), table([column(1, "a", flen=11)], [index(1, "u")]),
     table([column(1, "a2")], [index(1, "u")]), table([column(1, "a")], [index(1, "u")], state=WRITE_ONLY),
     table([column(1, "a")], [index(1, "w")]), None],
    ids=["added", "narrower", "renamed", "dropping", "index renamed", "gone"],
)  # fmt: skip
def test_visible_definition_change_holds_rows_from_the_ddls_first_step(shown: Json | None) -> None:
    steps = {3: (300, Action.ADD_COLUMN, TABLE), 4: (310, Action.ADD_COLUMN, TABLE)}
    assert hi_of(tidb(shown, steps), Rows(((299, 2), (300, 2))), 500) == 299


def test_dropped_partition_holds_rows() -> None:
    def parts(*ids: int) -> Json:
        return table([column(1, "a")], [index(1, "u")], partition={"definitions": [{"id": number} for number in ids]})

    known = job(3, 3, parts(11, 12), began=210, end=220, action=Action.ADD_PARTITION)
    steps = {3: (220, Action.ADD_PARTITION, TABLE), 4: (300, Action.DROP_PARTITION, TABLE)}
    assert hi_of(tidb(parts(12), steps, known), Rows(((305, 2),)), 500) == 304
    assert hi_of(tidb(parts(11, 12), steps, known), Rows(((305, 2),)), 500) == 500


def test_steps_of_finished_jobs_are_taken_from_the_history() -> None:
    over = job(3, 5, table([column(1, "a")]), began=300, end=320, action=Action.DROP_INDEX)
    other = job(4, 6, table([column(1, "a")], table_id=11), began=300, end=330, action=Action.DROP_INDEX)
    steps = {version: (297 + version, Action.DROP_INDEX, TABLE) for version in (3, 4, 5)}
    assert hi_of(tidb(DROPPING, steps, over), Rows(((301, 2),)), 500) == 500
    # A job on another table with a later version does not explain these steps.
    assert hi_of(tidb(DROPPING, steps, other, newest=6), Rows(((301, 2),)), 500) == 300


def test_rolled_back_job_holds_no_rows() -> None:
    back = job(3, 0, None, began=290, end=0, action=Action.ADD_INDEX, state=5)
    steps = {3: (300, Action.ADD_INDEX, TABLE), 4: (310, Action.ADD_INDEX, TABLE)}
    assert hi_of(tidb(PLAIN, steps, back), Rows(((305, 3), (400, 4))), 500) == 500
    # Much later: the definition is that of later jobs, and the job without a version had ended before them.
    later = job(4, 9, table([column(1, "a"), column(3, "c")]), began=600, end=700, action=Action.ADD_COLUMN)
    changed = table([column(1, "a"), column(3, "c")])
    assert hi_of(tidb(changed, {**steps, 9: (700, 5, TABLE)}, back, later), Rows(((305, 3), (400, 4))), 500) == 500


def test_version_being_written_is_assumed_to_be_any_ddl() -> None:
    port = tidb(PLAIN, {3: (300, Action.DROP_INDEX, TABLE)}, locked=(3,))
    assert hi_of(port, Rows(((298, 2), (320, 2))), 500) == 319


def test_ddl_visible_only_at_its_binlog_holds_no_rows() -> None:
    steps = {3: (300, Action.TRUNCATE_TABLE, 99), 4: (310, Action.CREATE_TABLE, 98), 5: (320, Action.DROP_TABLE, TABLE)}
    assert hi_of(tidb(PLAIN, steps), Rows(((305, 2),)), 500) == 500


def test_without_schema_versions_rows_of_an_unknown_version_are_held() -> None:
    assert hi_of(tidb(PLAIN, {}), Rows(((260, 2), (320, 3))), 500) == 319
    assert hi_of(tidb(PLAIN, {}), Rows(((260, 2), (320, 2))), 500) == 500


def running(action: int, **more: Any) -> Json:
    return {**job(9, 0, PLAIN, began=300, end=0, action=action, state=1), **more}


@pytest.mark.parametrize(
    ("one", "place"),
    [
        (running(Action.DROP_INDEX), 300),
        (running(Action.DROP_INDEX, real_start_ts=0, state=8), None),
        (running(Action.ADD_INDEX, schema_state=3), None),
        (running(Action.MULTI_SCHEMA_CHANGE, multi_schema_info={"revertible": True}), None),
        (running(Action.MULTI_SCHEMA_CHANGE, multi_schema_info={"revertible": False}), 300),
        (running(Action.REORGANIZE_PARTITION, table_id=99, schema_state=3), None),
        (running(Action.REORGANIZE_PARTITION, table_id=99, schema_state=4), 300),
        (running(Action.PARTITION_BY, table_id=99, schema_state=4), None),
    ],
    ids=["drop index", "drop index not started", "add index", "revertible multi-schema change",
         "irreversible multi-schema change", "reorganize partition before its last states",
         "reorganize partition in its last states", "partition by"],
)  # fmt: skip
def test_running_jobs_are_read_by_sql(one: Json, place: int | None) -> None:
    assert compute_running_ts(one) == place
    port = tidb(PLAIN, {})
    found = hi_of(port, Rows(((260, 2), (320, 2))), 500, history=History(port, [one]))
    assert found == (500 if place is None else 319)
    assert port.asked == []  # the status port may be closed


@pytest.mark.parametrize("action", [Action.REORGANIZE_PARTITION, Action.PARTITION_BY, Action.REMOVE_PARTITIONING])
def test_ddl_that_logs_keyless_changes_twice_holds_rows_from_its_first_step(action: int) -> None:
    rows, keyless = Rows(((260, 2), (320, 2))), table([column(1, "a")])
    made = [CREATE_DB, {**CREATE, "binlog": {**CREATE["binlog"], "TableInfo": keyless}}]
    port = Tidb(made, {TABLE: keyless}, {})
    assert hi_of(port, rows, 500, history=History(port, [running(action, schema_state=1)])) == 319
    # The definition that rows see does not change meanwhile.
    assert hi_of(Tidb(made, {TABLE: keyless}, {3: (300, action, TABLE)}), rows, 500) == 319
    assert hi_of(tidb(PLAIN, {3: (300, action, TABLE)}), rows, 500) == 500


def test_keys_of_tidbs_meta_are_encoded_as_tidb_does() -> None:
    assert encode_meta_key("SchemaVersionKey") == b"mSchemaVe\xffrsionKey\xff" + bytes(8) + b"\xf7" + bytes(7) + b"s"
    assert encode_meta_key("Diff:7") == b"mDiff:7\0\0\xfd" + bytes(7) + b"s"


def test_long_values_are_read_and_unexpected_answers_are_errors() -> None:
    value = base64.b64encode(json.dumps({"type": 8, "table_id": 5}).encode()).decode()
    long = {"writes": [{"start_ts": 8, "commit_ts": 9}], "values": [{"start_ts": 8, "value": value}]}
    step = parse_step(4, json.dumps({"value": {"info": long}}))
    assert step is not None
    assert (step.commit_ts, step.action, step.table_id) == (9, 8, 5)
    back = {"writes": [{"type": 3, "start_ts": 9, "commit_ts": 9}]}
    assert parse_step(4, json.dumps({"value": {"info": back}})) is None
    assert parse_newest_version(json.dumps({"info": {}})) is None
    with pytest.raises(SourceUnavailable, match="schema version"):
        parse_newest_version(json.dumps({"value": {"error": "region is away"}}))
    with pytest.raises(WireError, match="not a record of a key"):
        parse_newest_version("[]")
    with pytest.raises(WireError, match="but not its value"):
        parse_step(4, json.dumps({"info": {"writes": [{"start_ts": 8, "commit_ts": 9}]}}))
