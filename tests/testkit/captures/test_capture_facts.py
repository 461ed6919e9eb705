"""Behaviour of real TiDB 7.5 clusters (tidb-binlog 1.14), one test per point, and how Binlake handles it.

Other tests check that all rows and states are equal (test_codec_golden, test_captures_direct). These tests show that
each point occurs in the captures, so that those tests cover it, or they use a handwritten message.
"""

from __future__ import annotations

import gzip
from collections import defaultdict
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from binlake.changes.net import RowEvent, compute_net_changes
from binlake.cluster.source.protocol import Absent, RolledBack, read_status
from binlake.ddl.definitions import LandedDdl
from binlake.dialect import map_ddl
from binlake.rows.schema import Action, DdlJob, SchemaState
from binlake.testkit.captures import read_expected_states
from binlake.testkit.captures.capture import Capture
from binlake.wire import binlog_pb2 as pb
from deploy.local.commitlog import CommitLog, plan_ddl, read_log

CAPTURES = Path(__file__).parents[2] / "captures"
DDL = ("ddl", "ddl_late")
Json = dict[str, Any]


def capture(name: str) -> Capture:
    return Capture(CAPTURES / name)


@cache
def log(name: str) -> CommitLog:
    return read_log(capture(name))


@cache
def plan(name: str) -> list[LandedDdl]:
    return plan_ddl(log(name))


@cache
def rows(name: str) -> list[Json]:
    return list(capture(name).read_decoded())


def jobs(name: str, *, text: str = "", kinds: tuple[int, ...] = ()) -> list[DdlJob]:
    return [job for _, job in log(name).jobs if text in job.query and (not kinds or job.type in kinds)]


def statements(name: str, word: str) -> list[str]:
    path = next(CAPTURES.joinpath(name).glob("statements.sql*"))
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as stream:
        return [line for line in stream if word in line]


def before(name: str, commit_ts: int) -> SchemaState:
    return SchemaState().fold((ts, job) for ts, job in log(name).jobs if ts < commit_ts)


def test_1_a_binlog_can_be_wrong_and_a_replicator_cannot_know() -> None:
    # the target shows what the binlog says; only verify, which reads the source, can find the difference
    anomaly = capture("anomaly")
    upstream = {(s.commit_ts, t["table"]): t.get("rows") for s in anomaly.read_states() for t in s.contents}
    expected = {(s.commit_ts, t["table"]): t.get("rows") for s in read_expected_states(anomaly) for t in s.contents}
    differing = {place for place in upstream if upstream[place] != expected[place]}
    assert differing
    by_binlog = {
        (s.commit_ts, t["table"]): t["rows_by_binlog"] for s in anomaly.read_replayed_states() for t in s.contents
    }
    assert all(expected[place] == by_binlog[place] for place in differing)
    assert statements("anomaly", "UPDATE IGNORE")


@pytest.mark.parametrize(("name", "carries"), [("ddl", 0), ("ddl_late", 1)])
def test_2_delete_images_carry_columns_that_are_not_public_yet_in_later_commits_only(name: str, carries: int) -> None:
    with_data = {key for row in rows(name) if row["op"] == "D" for key in row.get("extra_before", {})}
    refused = [line for line in statements(name, "DELETE") if "EncodeRow error" in line]
    assert with_data
    assert bool(refused) is not bool(carries)


def test_3_a_savepoint_is_refused_upstream_and_leaves_nothing_behind() -> None:
    refused = statements("txn", "SAVEPOINT") + statements("anomaly", "SAVEPOINT")
    assert len(refused) == 2
    assert all("not supported when binlog is enabled" in line for line in refused)


@pytest.mark.parametrize("name", DDL)
def test_4_arguments_of_finished_jobs_are_mostly_null_and_renames_tell_their_databases_in_the_text(name: str) -> None:
    raw = [job.raw_args for _, job in log(name).jobs]
    assert raw.count(None) > len(raw) / 2
    swap, move = jobs(name, kinds=(Action.RENAME_TABLES,))
    assert [info["name"]["O"] for info in swap.multiple_table_infos] == ["sw_b", "sw_a", "sw_b"]
    assert [info["name"]["O"] for info in move.multiple_table_infos] == ["sw_a", "sw_a"]
    after = next(ddl for ddl in plan(name) if ddl.job_id == move.id).after
    assert {(table.db, table.name) for table in after.tables} == {("ddl_two", "sw_a"), ("ddl_one", "sw_a")}


@pytest.mark.parametrize("name", DDL)
def test_5_exchange_partition_names_the_partitioned_table_and_the_plain_one_gets_the_partitions_id(name: str) -> None:
    for ddl in (ddl for ddl in plan(name) if ddl.action == Action.EXCHANGE_PARTITION):
        schema = before(name, ddl.commit_ts)
        parts, plain = schema.find("ddl_one", "parts"), schema.find("ddl_one", "exch")
        assert parts is not None
        assert plain is not None
        now = {table.name: table for table in ddl.after.tables}
        assert now["exch"].id in parts.partition_ids
        assert plain.id in now["parts"].partition_ids
    ids = {row["table_id"] for row in rows(name) if row["table"] == "ddl_one.exch"}
    assert len(ids) == 2, "rows under the old id and under the partition's"


@pytest.mark.parametrize("name", DDL)
def test_6_partition_by_gives_a_new_id_and_hash_tables_grow_by_a_kind_of_its_own(name: str) -> None:
    kinds = (Action.PARTITION_BY, Action.REMOVE_PARTITIONING)
    for ddl in (ddl for ddl in plan(name) if ddl.action in kinds):
        assert ddl.before.tables[0].id != ddl.after.tables[0].id
        assert ddl.before.tables[0].name == ddl.after.tables[0].name
    assert [job.type for job in jobs(name, text="ADD PARTITION PARTITIONS")] == [64]


@pytest.mark.long
@pytest.mark.parametrize("name", [path.name for path in sorted(CAPTURES.iterdir())])
def test_7_a_job_finishes_after_its_binlog_committed(name: str) -> None:
    committed = {ddl.job_id: ddl.commit_ts for ddl in log(name).ddls if ddl.schema_state != 1}
    finished = {job.id: job.finished_ts for _, job in log(name).jobs}
    assert all(finished[job_id] > ts for job_id, ts in committed.items() if job_id in finished)


@pytest.mark.parametrize("name", DDL)
def test_8_rolled_back_jobs_send_a_binlog_that_changes_nothing(name: str) -> None:
    ended = {job.id: job for _, job in log(name).jobs if not job.took_effect}
    logged = [ddl for ddl in log(name).ddls if ddl.job_id in ended]
    assert len(logged) == 6
    assert all(ddl.schema_state == 0 and ended[ddl.job_id].schema_version > 0 for ddl in logged)
    skipped = {ddl.job_id: ddl for ddl in plan(name)}
    assert all("rolled back" in skipped[ddl.job_id].reason for ddl in logged)
    assert all(skipped[ddl.job_id].after.tables == () for ddl in logged)


@pytest.mark.parametrize("name", DDL)
def test_9_rows_of_a_failing_modify_carry_column_ids_that_no_definition_knows(name: str) -> None:
    sides = ("extra_before", "extra_after")
    unknown = [row for row in rows(name) if any(key.startswith("?#") for side in sides for key in row.get(side, {}))]
    assert {row["table"] for row in unknown} == {"ddl_one.failt"}


@pytest.mark.parametrize("name", DDL)
def test_10_a_drop_inside_a_multi_schema_change_sends_no_delete_only_binlog(name: str) -> None:
    extra = [ddl.query for ddl in log(name).ddls if ddl.schema_state == 1]
    assert len(extra) == 6
    assert not any("`ms`" in query for query in extra)
    assert len(jobs(name, text="DROP COLUMN b, DROP COLUMN c")) == 1


@pytest.mark.parametrize("name", DDL)
def test_11_a_drop_of_two_tables_is_two_jobs_with_the_whole_text_each(name: str) -> None:
    both = [ddl for ddl in plan(name) if ddl.action == Action.DROP_TABLE and "multi_y" in ddl.query]
    assert [ddl.table for ddl in both] == ["multi_x", "multi_y"]
    assert len({ddl.query for ddl in both}) == 1
    sql = [map_ddl(replace(d, sql=d.query), "mariadb").sql[-1] for d in both]
    assert [name in text for text in sql for name in ("multi_x", "multi_y")] == [True, False, False, True]


@pytest.mark.parametrize("name", DDL)
def test_12_the_text_is_restored_and_placement_is_wholly_a_feature_comment(name: str) -> None:
    text = " ".join(ddl.query for ddl in log(name).ddls)
    assert all(word in text for word in ("_UTF8MB4'", "NEXTVAL(", "DEFINER = CURRENT_USER"))
    placed = [ddl for ddl in plan(name) if ddl.query.startswith("/*T![")]
    assert {ddl.decision for ddl in placed} == {"skip"}
    assert any("ALTER DATABASE" in ddl.query for ddl in placed)


@pytest.mark.parametrize("name", DDL)
def test_13_setval_is_upper_case_no_ddl_and_can_carry_an_old_value(name: str) -> None:
    found = [ddl for ddl in log(name).ddls if ddl.query.startswith("SELECT SETVAL(")]
    kinds = {d.kind for d in found}
    assert kinds == {"setval"}
    values = [int(ddl.query.rstrip(");").rpartition(",")[2]) for ddl in found]
    assert any(a >= b for a, b in pairwise(values))


@pytest.mark.parametrize("name", DDL)
def test_14_a_change_on_the_old_id_commits_after_the_truncate(name: str) -> None:
    truncated = {ddl.before.tables[0].id: ddl.commit_ts for ddl in plan(name) if ddl.action == Action.TRUNCATE_TABLE}
    late = [row for row in rows(name) if int(row["commit_ts"]) > truncated.get(row["table_id"], 1 << 63)]
    gone = [row["table"] for row in late if before(name, int(row["commit_ts"])).is_gone(row["table_id"])]
    # the other table was restored by FLASHBACK TABLE
    assert (len(late), gone) == (2, ["ddl_one.trunc2"])


def test_15_insert_and_delete_of_one_row_in_one_transaction_are_both_written() -> None:
    story: dict[tuple[str, str], list[str]] = defaultdict(list)
    for row in rows("keys"):
        if row["table"] == "keys_db.t_int":
            story[row["commit_ts"], (row.get("after") or row["before"])["id"]].append(row["op"])
    assert ["I", "D"] in story.values() or ["D", "I"] in story.values()
    table = before("keys", 1 << 62).find("keys_db", "t_int")
    assert table is not None
    both = [RowEvent(1, 1, 0, "insert", None, {"id": "1"}), RowEvent(1, 1, 1, "delete", {"id": "1"}, None)]
    # it stays a delete, because a replay may find the row
    assert [change.op for change in compute_net_changes(both, table.find_identity())] == ["delete"]


def test_16_text_of_every_character_set_is_utf_8_on_the_wire() -> None:
    table = before("types_all", 1 << 62).find("types_all", "all_types")
    assert table is not None
    others = [column.name for column in table.columns if column.charset in ("gbk", "latin1")]
    assert len({table.find_column(name).charset for name in others}) == 2  # type: ignore[union-attr]
    payloads = {row[0]: row[2] for row in log("types_all").rows}
    images = [(r["commit_ts"], r["after"]) for r in rows("types_all") if r["table_id"] == table.id and r.get("after")]
    seen = [(ts, image[name]) for ts, image in images for name in others]
    wide = [(int(ts), text.encode()) for ts, text in seen if text and not text.isascii()]
    assert len(wide) > 10
    assert all(text in payloads[ts] for ts, text in wide)
    # ZEROFILL is not padded either
    assert any(image["zf"] and len(image["zf"]) < 3 for _, image in images)


def test_17_a_text_key_is_in_the_row_under_the_new_collation_and_in_the_handle_only_under_the_old_one() -> None:
    def in_handle_only(name: str, table: str) -> set[bool]:
        inserts = (row for row in rows(name) if row["op"] == "I" and row["table"] == table)
        return {"k" in row.get("from_handle", ()) for row in inserts}

    assert in_handle_only("keys", "keys_db.t_ci") == {False}
    assert in_handle_only("keys_oldcoll", "oldcoll_db.t_ci") == {True}


def test_18_a_lost_rollback_is_proved_by_its_record_alone() -> None:
    bodies = {answer["path"]: answer["body"] for answer in capture("txn").read_http_answers()}
    lost = [outcome for outcome in capture("txn").read_outcomes() if outcome["kind"] == "orphan_rollback"]
    found = [read_status(bodies[f"/mvcc/hex/{o['primary_key_hex']}"], int(o["start_ts"])) for o in lost]
    assert found == [RolledBack()] * 4
    # after a conflict at prewrite there may be no trace at all, and so no proof
    assert isinstance(read_status('{"value": {"info": {"writes": [{"start_ts": 7, "commit_ts": 8}]}}}', 9), Absent)


def test_19_rollbacks_are_common() -> None:
    kinds = [pb.Binlog.FromString(payload).tp for payload in capture("keys").read_binlogs()]
    assert 0.01 < kinds.count(pb.Rollback) / kinds.count(pb.Prewrite) < 0.15
