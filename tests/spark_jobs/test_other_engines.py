"""Other engines read mirrors and histories: the page's examples are run, and give what the audit gives."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from mirrored import Mirrored
from pyspark.sql import SparkSession

from binlake.audit.audit import Audit
from binlake.lake.columntypes import TEXT_TYPE, parse_texts
from binlake.rows.schema import ColumnInfo
from binlake.rows.schema import mysqltypes as t
from binlake.spark_jobs.commands.views import ENGINES, render_history_query, render_typed_column
from binlake.testkit.workload.spec import Col, build_column_json

pytestmark = pytest.mark.spark
PAGE = Path(__file__).resolve().parents[2] / "docs" / "operate" / "other-engines.md"
_BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def page(mirrored: Mirrored) -> dict[str, Any]:
    """The names that the page's blocks define, run in order with this lake."""
    first, *blocks = _BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    assert first.startswith("LAKE = ")
    names: dict[str, Any] = {"LAKE": mirrored.ctx.paths.root}
    second = str(mirrored.windows[1].hi)
    for block in blocks:
        exec(re.sub(r"^at = \d+$", f"at = {second}", block, flags=re.MULTILINE), names)
    return names


def test_mirrors_are_read_by_polars_and_duckdb(mirrored: Mirrored, page: dict[str, Any]) -> None:
    wanted = Audit(mirrored.ctx.paths).read_table_as_of("shop", "item", mirrored.windows[-1].hi).rows
    rows = sorted((int(row["id"]), row["name"], float(row["price"])) for row in wanted)
    assert page["items"].rows() == rows
    assert page["dearest"] == sorted(rows, key=lambda row: (-row[2], row[0]))[:3]


def test_a_version_is_the_state_at_the_end_of_its_window(mirrored: Mirrored, page: dict[str, Any]) -> None:
    wanted = Audit(mirrored.ctx.paths).read_table_as_of("shop", "item", mirrored.windows[1].hi).rows
    assert sorted(page["before"]["id"]) == sorted(int(row["id"]) for row in wanted)
    assert len(wanted) != page["items"].height


@pytest.fixture
def lake_in_duckdb(mirrored: Mirrored) -> Iterator[duckdb.DuckDBPyConnection]:
    """A database whose `delta_scan` reads `mutation`: DuckDB's extension cannot be downloaded here."""
    with duckdb.connect() as database:
        place = mirrored.ctx.paths.locate_table("mutation")
        database.register("mutation", DeltaTable(place).to_pyarrow_dataset())
        database.execute(f"CREATE MACRO delta_scan(place) AS TABLE SELECT * FROM mutation WHERE place = '{place}'")
        database.execute("SET TimeZone = 'UTC'")
        yield database


_ORDER = "ORDER BY _commit_ts, _start_ts, _seq, _change_type DESC"


def test_history_has_the_images_of_all_changes_in_the_mirrors_types(
    mirrored: Mirrored, lake_in_duckdb: duckdb.DuckDBPyConnection, spark: SparkSession
) -> None:
    query = f"SELECT * FROM ({render_history_query(mirrored.ctx.paths, 'shop', 'item', 'duckdb')}) {_ORDER}"
    found = lake_in_duckdb.sql(query)
    rows = [dict(zip(found.columns, row, strict=True)) for row in found.fetchall()]
    kinds = dict(zip(found.columns, found.types, strict=True))
    assert [str(kinds[name]) for name in ("id", "name", "price", "stock")] == [
        "INTEGER",
        "VARCHAR",
        "DOUBLE",
        "INTEGER",
    ]
    assert {row["_change_type"] for row in rows} == {"insert", "update_preimage", "update_postimage", "delete"}
    assert [_plain(row) for row in rows] == _list_images(mirrored)
    in_spark = spark.sql(
        f"SELECT * FROM ({render_history_query(mirrored.ctx.paths, 'shop', 'item')}) {_ORDER}"
    ).collect()
    assert [_plain(row.asDict()) for row in in_spark] == [_plain(row) for row in rows]


@pytest.mark.parametrize(
    ("column", "texts"),
    [
        (Col("c", t.LONG, 11, 0), ["-7", "2147483647"]),
        (Col("c", t.LONGLONG, 20, 0, unsigned=True), ["0", "18446744073709551615"]),
        (Col("c", t.NEWDECIMAL, 30, 10), ["-12345678901234567890.0123456789", "0.5"]),
        (Col("c", t.DOUBLE, 22, -1), ["1e300", "-0.1"]),
        (Col("c", t.DATE, 10, 0), ["2026-02-28", "0000-00-00", "2026-00-00", "9999-12-31"]),
        (Col("c", t.DATETIME, 26, 6), ["2026-02-28 23:59:59.999999", "0000-00-00 00:00:00", "2026-02-30 00:00:00"]),
        (Col("c", t.TIMESTAMP, 26, 6), ["1970-01-01 00:00:01.000000", "2026-03-29 02:30:00.5", "0000-00-00 00:00:00"]),
        (Col("c", t.VARCHAR, 10, -1, charset="binary", collate="binary"), ["00FF", ""]),
        (Col("o'k\"\\", t.VARCHAR, 10, -1, charset="utf8mb4"), ["a'b\\", ""]),
    ],
    ids=lambda value: str(value.tp) if isinstance(value, Col) else "",
)  # fmt: skip
def test_a_column_has_the_mirrors_value_in_duckdb(column: Col, texts: list[str]) -> None:
    info = ColumnInfo.from_json(build_column_json(column, 1, 0))
    wanted, _ = parse_texts(info, pa.array([*texts, None], pa.string()))
    with duckdb.connect() as database:
        database.execute("SET TimeZone = 'UTC'")
        images = [{column.name: text} for text in [*texts, None]]
        database.register("images", pa.table({"image": pa.array([list(i.items()) for i in images], TEXT_TYPE)}))
        found = database.sql(f"SELECT {render_typed_column(info, ENGINES['duckdb'])} FROM images").to_arrow_table()
    assert found.column(0).cast(wanted.type).to_pylist() == wanted.to_pylist()


def _plain(row: dict[str, Any]) -> tuple[Any, ...]:
    names = ("_commit_ts", "_seq", "_change_type", "id", "name", "price", "stock")
    return tuple(row[name] for name in names)


def _list_images(mirrored: Mirrored) -> list[tuple[Any, ...]]:
    table = DeltaTable(mirrored.ctx.paths.locate_table("mutation")).to_pyarrow_dataset().to_table().to_pylist()
    images = []
    for change in sorted(table, key=lambda row: (row["commit_ts"], row["start_ts"], row["seq"])):
        if (change["db"], change["table"]) == ("shop", "item"):
            both = change["op"] == "update"
            for side, name in (("before", "update_preimage" if both else "delete"),
                               ("after", "update_postimage" if both else "insert")):  # fmt: skip
                if change[side] is not None:
                    image = dict(change[side])
                    values = (int(image["id"]), image["name"], float(image["price"]))
                    stock = image.get("stock")
                    images.append((change["commit_ts"], change["seq"], name, *values, stock and int(stock)))
    return images
