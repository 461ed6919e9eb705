"""land combines overlapping pulls: each transaction once, different contents refused, each pump counted."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pyarrow as pa
import pytest

from binlake.errors import ConflictingBinlogs
from binlake.lake.parts import TablePart
from binlake.rows.schema import WindowDdl
from binlake.spark_jobs.engine.engine import Keeper
from binlake.spark_jobs.job.context import Bounds, StageContext
from binlake.spark_jobs.job.decoding import DecodeAhead, DecodedFiles
from binlake.spark_jobs.land.pulled import NOTHING, Pulled, PumpPart, digest_pulled
from binlake.spark_jobs.land.pump_source import ARROW_SCHEMA
from binlake.spark_jobs.stages.land import _refuse_conflicts, _take_decoded
from binlake.wire import build

KEEPERS = {"in memory": 1 << 20, "in files": 0}


def pulled_rows(*rows: tuple[str, str, int, int, str, int]) -> pa.Table:
    """(pump, kind, commit_ts, chunk, content, schema version) each."""
    return pa.Table.from_pylist(
        [
            {"pump": pump, "kind": kind, "commit_ts": ts, "start_ts": ts - 1, "chunk": chunk, "content": content,
             "schema_version": version if kind == "dml" else 0, "job_id": version if kind == "ddl" else 0,
             "schema_state": 6 if kind == "ddl" else 0, "query": "create table t (a int)" if kind == "ddl" else None,
             "payload": f"{pump}{chunk}".encode()}
            for pump, kind, ts, chunk, content, version in rows
        ],
        schema=ARROW_SCHEMA,
    )  # fmt: skip


def digest(rows: pa.Table, bounds: Bounds, folder: Path, held: int = 0) -> Pulled:
    return Pulled([digest_pulled(rows, bounds, str(folder), Keeper(held))], str(folder))


def read(pulled: Pulled) -> list[tuple[int, int, str]]:
    names = ["commit_ts", "chunk", "pump"]
    found = [row for rows in pulled.sum_stored().rows for batch in rows.read(names) for row in batch.to_pylist()]
    return [(row["commit_ts"], row["chunk"], row["pump"]) for row in found]


@pytest.mark.parametrize("held", KEEPERS.values(), ids=KEEPERS)
def test_equal_transactions_of_two_pumps_are_one_and_different_content_is_refused(tmp_path: Path, held: int) -> None:
    # U-22
    # S0-17, DESIGN 3.4: equal commit_ts with equal content is one transaction; rows outside the window are ignored
    rows = pulled_rows(
        ("b", "dml", 10, 0, "x", 3), ("a", "dml", 10, 0, "x", 3), ("a", "dml", 10, 1, "x", 3),
        ("b", "dml", 10, 1, "x", 3), ("b", "dml", 11, 0, "y", 4), ("a", "dml", 5, 0, "early", 2),
        ("b", "dml", 5, 0, "other", 2), ("a", "proof", 20, 0, "", 0), ("a", "dml", 30, 0, "late", 9),
    )  # fmt: skip
    pulled = digest(rows, Bounds(5, 20), tmp_path, held)
    assert pulled.sum_stored().landed.rows == 3
    assert read(pulled) == [(10, 0, "a"), (10, 1, "a"), (11, 0, "b")]
    assert {part.path.split("/")[0] for part in pulled.sum_stored().parts} == {"commit_date=1970-01-01"}
    assert {pump: part.proof for pump, part in pulled.survey().items()} == {"a": 20, "b": 0}
    _refuse_conflicts(pulled, Bounds(5, 20))
    with pytest.raises(ConflictingBinlogs, match="commit_ts=5"):
        _refuse_conflicts(digest(rows, Bounds(4, 20), tmp_path, held), Bounds(4, 20))


def test_content_of_two_pumps_is_compared_except_for_the_prewrite_key(tmp_path: Path) -> None:
    # S0-17: the payloads themselves are compared, damaged ones byte for byte.
    def find_conflict(second: bytes) -> int | None:
        found = pulled_rows(("a", "dml", 10, 0, "", 3), ("b", "dml", 10, 0, "", 3), ("a", "dml", 12, 0, "", 3))
        found = found.set_column(9, "content", pa.nulls(3, pa.string()))
        found = found.set_column(10, "payload", pa.array([one, second, b"\xff"], pa.binary()))
        return digest(found, Bounds(5, 20), tmp_path).find_conflict()

    def binlog(key: bytes, value: bytes) -> bytes:
        return (
            build.build_commit(build.build_prewrite(9, key, b""), 10).SerializeToString()
            + b"\x2a"
            + bytes([len(value)])
            + value
        )

    one = binlog(b"k1", b"\x08\x03")
    assert find_conflict(binlog(b"k2", b"\x08\x03")) is None
    assert find_conflict(binlog(b"k1", b"\x08\x04")) == 10
    assert find_conflict(one[:-1]) == 10


@pytest.mark.parametrize("held", KEEPERS.values(), ids=KEEPERS)
def test_each_pump_is_counted_within_the_window_and_each_ddl_reported_once(tmp_path: Path, held: int) -> None:
    rows = pulled_rows(
        ("a", "dml", 6, 0, "x", 7), ("a", "dml", 6, 1, "x", 7), ("a", "ddl", 8, 0, "d", 41),
        ("b", "ddl", 8, 0, "d", 41), ("a", "ddl", 9, 0, "e", 42), ("a", "dml", 12, 0, "y", 8),
        ("a", "dml", 25, 0, "z", 9), ("a", "proof", 25, 0, "", 0), ("c", "proof", 21, 0, "", 0),
    )  # fmt: skip
    pulled = digest(rows, Bounds(5, 20), tmp_path, held)
    parts = pulled.survey()
    assert parts["a"] == PumpPart(proof=25, entities=4, ddls=2, schema_version=8)
    assert parts.get("b", NOTHING).proof == 0
    assert parts["c"] == PumpPart(21, 0, 0, 0)
    text = "create table t (a int)"
    assert pulled.read_ddls(Bounds(5, 20)) == [WindowDdl(8, 7, 41, 6, text), WindowDdl(9, 8, 42, 6, text)]
    assert pulled.read_ddls(Bounds(8, 20)) == [WindowDdl(9, 8, 42, 6, text)]
    assert pulled.find_first_row(6, 8) == 12
    assert pulled.find_first_row(6, 10) is None
    assert (pulled.find_first_row(6), pulled.find_first_row(7)) == (6, 12)


@pytest.mark.parametrize("held", KEEPERS.values(), ids=KEEPERS)
def test_a_window_that_ends_earlier_has_the_rows_up_to_there_and_no_other_file(tmp_path: Path, held: int) -> None:
    rows = pulled_rows(*(("a", "dml", ts, 0, "x", 3) for ts in range(1, 30)), ("a", "proof", 30, 0, "", 0))
    ranges = [digest_pulled(rows, Bounds(lo, lo + 10), str(tmp_path), Keeper(held)) for lo in (0, 10, 20)]
    pulled = Pulled(ranges, str(tmp_path))
    assert pulled.find_first_row(15) == 15
    own = pulled.cut(14, Keeper(held))
    pulled.discard(own)
    assert own.hi == 14
    assert [ts for ts, _, _ in read(own)] == list(range(1, 15))
    assert own.sum_stored().landed.dml == 14
    files = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.parquet")}
    assert files == {part.path for part in own.sum_stored().parts}
    assert pulled.cut(30, Keeper(held)).sum_stored() == pulled.sum_stored()
    own.discard()
    assert not list(tmp_path.rglob("*.parquet"))


def test_rows_decoded_ahead_are_deleted_unless_all_ranges_have_them(tmp_path: Path) -> None:  # 34
    binlog, mutation = tmp_path / "binlog", tmp_path / "mutation"
    mutation.mkdir()

    def decode(rows: pa.Table) -> DecodedFiles:
        part = TablePart(f"{rows['commit_ts'][0].as_py()}.parquet", {}, 1, rows.num_rows, "{}")
        (mutation / part.path).touch()
        return DecodedFiles(str(mutation), [part], 1, {}, None)

    rows = pulled_rows(*(("a", "dml", ts, 0, "x", 3) for ts in range(1, 30)), ("a", "proof", 30, 0, "", 0))
    ahead = cast("DecodeAhead", decode)
    ranges = [digest_pulled(rows, Bounds(lo, lo + 10), str(binlog), Keeper(0), ahead) for lo in (0, 10, 20)]
    pulled = Pulled(ranges, str(binlog), ahead)
    assert [one.parts[0].rows for one in pulled.decoded or ()] == [10, 10, 9]
    # The range that is cut has other rows now, and the last one is left out.
    own = pulled.cut(14, Keeper(0))
    pulled.discard(own)
    assert [path.name for path in mutation.iterdir()] == ["1.parquet"]
    assert _take_decoded(cast("StageContext", None), own) is None
    assert not list(mutation.iterdir())
    assert [ts for ts, _, _ in read(own)] == list(range(1, 15))


def test_a_range_that_is_not_proved_is_not_proved_by_a_later_one(tmp_path: Path) -> None:
    proved, early = pulled_rows(("a", "proof", 10, 0, "", 0)), pulled_rows(("a", "proof", 7, 0, "", 0))
    later = pulled_rows(("a", "proof", 20, 0, "", 0))
    for first, proof in ((proved, 20), (early, 7)):
        ranges = [
            digest_pulled(rows, bounds, str(tmp_path), Keeper(0))
            for rows, bounds in ((first, Bounds(0, 10)), (later, Bounds(10, 20)))
        ]
        assert Pulled(ranges, str(tmp_path)).survey()["a"].proof == proof
