"""The net changes of a window as SQL: the driver and Spark's workers make the same batches."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from support.netchanges import WINDOW, changes, definitions

from binlake.config.model import Target
from binlake.lake.paths import LakePaths
from binlake.lake.tables import CHANGE
from binlake.statements import BatchLimits, Phase, chunks
from spark_jobs.convert import keeping, netstatements
from spark_jobs.convert.netstatements import PLACED, SIZES
from spark_jobs.convert.render import Renderer
from spark_jobs.job.lake import Rows, collect_rows, ensure_tables, map_rows, overwrite, read_table
from spark_jobs.tables.pinned import compute_rows_digest

pytestmark = pytest.mark.spark

LIMITS = BatchLimits(rows=7)


def statements(changed: Rows) -> pa.Table:
    """The rows of `statement`, in order."""
    rows = map_rows(changed, chunks.add_chunk_keys, PLACED)
    counted = chunks.sum_sizes(collect_rows(map_rows(rows, chunks.measure_sizes, SIZES)))
    renderer = Renderer(WINDOW, definitions(), chunks.cut_chunks(counted, LIMITS), "mariadb", LIMITS, plain=False)
    return collect_rows(netstatements.render_rows(rows, renderer)).sort_by(
        [(n, "ascending") for n in ("segment", "phase", "batch")]
    )


@pytest.mark.soak
def test_batches_are_the_same_in_driver_and_workers(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # R-18 R-62
    monkeypatch.setattr(chunks, "CHUNK_ROWS", 60)
    paths, rows = LakePaths(str(tmp_path)), changes(Random(11), 500)
    ensure_tables(paths)
    overwrite(spark.createDataFrame(rows), paths, CHANGE, f"window = '{WINDOW}'", {})
    by_spark = read_table(spark, paths, CHANGE).repartition(3)
    found = statements(rows)
    assert statements(by_spark).to_pylist() == found.to_pylist()
    assert compute_rows_digest(by_spark, CHANGE.list_column_names()) == compute_rows_digest(
        rows, CHANGE.list_column_names()
    )
    kinds = set(zip(found["phase"].to_pylist(), found["kind"].to_pylist(), strict=True))
    assert kinds == {(Phase.DELETE, "delete"), (Phase.WRITE, "replace"), (Phase.WRITE, "insert")}


def test_rows_keep_their_phases_in_driver_and_workers(spark: SparkSession) -> None:
    draw = Random(3)
    rows = chunks.add_chunk_keys(changes(draw, 120))
    places = list(zip(*(rows[name].to_pylist() for name in (*keeping.PLACE_OF_KEY, "key")), strict=True))
    moved = draw.sample(places, 40)
    traced = pa.table(
        [
            pa.array(column, kind)
            for column, kind in zip(zip(*moved, strict=True), (pa.int32(), *[pa.string()] * 3), strict=True)
        ]
        + [pa.array([draw.choice([None, f'["{number}"]']) for number in range(40)], pa.string())],
        names=[*keeping.PLACE_OF_KEY, "key", "origin"],
    )
    several = {(0, "d", "a"): False, (1, "d", "a"): True, (1, "d", "ü"): False}
    expected = [
        _phases(row, dict(zip(moved, traced["origin"].to_pylist(), strict=True)), several) for row in rows.to_pylist()
    ]
    for found in (
        keeping.add_keep_phases(rows, traced, several, PLACED),
        keeping.add_keep_phases(
            spark.createDataFrame(rows).repartition(3), spark.createDataFrame(traced), several, PLACED
        ),
    ):
        shown = collect_rows(found).to_pylist()
        assert _comparable(shown) == _comparable([row for rows_of_key in expected for row in rows_of_key])
    assert {row["phase"] for row in shown} == {Phase.DELETE, Phase.WRITE, Phase.KEEP, Phase.RESTORE}


def test_keys_of_a_table_whose_types_may_differ_are_listed() -> None:
    # A DECIMAL has more values between two integers than their distance.
    rows = [row for row in changes(Random(5), 900, 1).to_pylist() if row["table"] == "a" and row["op"] != "delete"]
    named = [{**row, "key": f'["{n}"]', "after": [("id", str(n)), ("text", "")]} for n, row in enumerate(rows, 1000)]
    placed = chunks.add_chunk_keys(pa.Table.from_pylist(named, schema=changes(Random(5), 1).schema))
    cut = chunks.cut_chunks(chunks.sum_sizes(chunks.measure_sizes(placed)), BatchLimits())
    tables = [{"db-name": "d", "tbl-name": "a", "accept": ["column id is decimal(9,1), not bigint"]}]
    found = {}
    for options in (tables, [{**tables[0], "accept": [], "preserve": True}], []):
        accepted = netstatements.find_accepted(Target.model_validate({"tables": options}), [("d", "a"), ("d", "b")])
        renderer = Renderer(WINDOW, definitions(), cut, "mariadb", BatchLimits(), plain=False, accepted=accepted)
        found[accepted] = netstatements.render_rows(placed, renderer)["verify_sql"].to_pylist()
    assert list(found) == [frozenset({("d", "a")}), frozenset()]
    ranged, listed = ([" BETWEEN " in sql for sql in found[accepted]] for accepted in reversed(found))
    assert all(ranged)
    assert not any(listed)


def _phases(row: dict, moved: dict, several: dict) -> list[dict]:  # type: ignore[type-arg]
    """The rows that one of `changes` becomes, by the rule of `keeping` for a single row."""
    place, key = (row["segment"], row["db"], row["table"]), row["key"]
    is_moved = (*place, key) in moved
    anew = row["phase"] == Phase.WRITE and place in several and (several[place] or is_moved)
    origin = (moved[*place, key] if is_moved else key) if anew else None
    phases = [Phase.WRITE, Phase.KEEP, Phase.RESTORE] if origin is not None else [row["phase"]]
    return [{**row, "phase": int(phase), "anew": anew, "origin": origin} for phase in phases]


def _comparable(rows: list[dict]) -> list[str]:  # type: ignore[type-arg]
    return sorted(
        repr(sorted((name, value) for name, value in row.items() if name not in ("before", "after"))) for row in rows
    )
