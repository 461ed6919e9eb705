"""Rows of tables with columns of the target's own: which are written anew, and whose values they get (hazards R-12).

A table with one unique key is written in place, but for rows whose key is another row's former one; with more unique
keys every row is written anew. The origin of a row comes from `mutation`: net changes do not tell moves from new rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from binlake.schema import TableDef
from binlake.statement import KeptStatements, Phase, StatementBatch, TableStatements, images_from_maps, images_from_rows
from binlake.window.definitions import cell
from spark_jobs.context import StageContext
from spark_jobs.lake import local_frame
from spark_jobs.netchange import mutations, row_origins
from spark_jobs.sinks import SinkWindow

Place = tuple[int, str, str]
"""Segment, database, table."""
_PLACE = ("segment", "db", "table")


def with_origins(
    ctx: StageContext, window: SinkWindow, changes: DataFrame, tables: Mapping[Place, TableDef]
) -> DataFrame:
    """`changes` (placed) with `anew` and `origin`; rows written anew that had values once are there in KEEP and RESTORE
    too. `tables`: definitions by place.
    """
    kept = {place: table for place, table in tables.items() if table.kept}
    if not kept:
        return changes.withColumns({"anew": F.lit(False), "origin": F.lit(None).cast("string")})
    bounds = window.bounds
    cells = [cell(window.definitions, window.segments, db, table, segment) for segment, db, table in kept]
    traced = row_origins(mutations(ctx.spark, ctx.paths, bounds.lo, bounds.hi), cells)
    several = [(*place, len(table.unique_keys()) > 1) for place, table in kept.items()]
    places = F.broadcast(local_frame(ctx.spark, several, "segment INT, db STRING, table STRING, several BOOLEAN"))
    found = changes.join(places, list(_PLACE), "left").join(
        traced.withColumn("moved", F.lit(True)), [*_PLACE, "key"], "left"
    )
    written = (F.col("phase") == int(Phase.WRITE)) & F.col("several").isNotNull()
    anew = written & (F.col("several") | F.col("moved").isNotNull())
    origin = F.when(anew, F.when(F.col("moved").isNotNull(), F.col("origin")).otherwise(F.col("key")))
    found = found.withColumn("anew", F.coalesce(anew, F.lit(False))).withColumn("origin", origin)
    phases = F.array(F.lit(int(Phase.WRITE)), F.lit(int(Phase.KEEP)), F.lit(int(Phase.RESTORE)))
    phases = F.when(F.col("origin").isNotNull(), phases).otherwise(F.array("phase"))
    return found.withColumn("phase", F.explode(phases)).select(*changes.columns, "anew", "origin")


def written(writer: TableStatements, rows: pa.Table, images: Mapping[str, pa.Array]) -> Iterator[StatementBatch]:
    """Phase WRITE of a table with a key: in place, then anew."""
    anew = rows.column("anew").combine_chunks()
    for mask, is_anew in ((pc.invert(anew), False), (anew, True)):
        chosen = {name: values.filter(mask) for name, values in images.items()}
        if pc.any(mask).as_py():
            yield from writer.writes(chosen, anew=is_anew)


def kept(writer: KeptStatements, table: TableDef, rows: pa.Table, phase: int) -> Iterator[StatementBatch]:
    """Phases KEEP and RESTORE of a table: rows that keep their key, then those that moved."""
    moved = pc.not_equal(rows.column("origin"), rows.column("key")).combine_chunks()
    columns = table.identity().columns
    stayed, movers = rows.filter(pc.invert(moved)), rows.filter(moved)
    keys = images_from_maps(stayed.column("after").combine_chunks(), columns)
    origins = _parsed(movers.column("origin").to_pylist(), columns)
    if phase == Phase.KEEP:
        yield from writer.keeps(keys) if stayed.num_rows else ()
        yield from writer.keeps(origins) if movers.num_rows else ()
        return
    yield from writer.restores(keys) if stayed.num_rows else ()
    if movers.num_rows:
        yield from writer.moved_restores(images_from_maps(movers.column("after").combine_chunks(), columns), origins)


def _parsed(keys: Sequence[str], columns: Sequence[str]) -> dict[str, pa.Array]:
    """The images of keys (JSON arrays of the key's texts)."""
    return images_from_rows([dict(zip(columns, json.loads(key), strict=True)) for key in keys], columns)
