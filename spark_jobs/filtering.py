"""What happens to decoded rows before they are written: added columns, the expression filter, and the count of losses.

The order is that of S4-07: a row has passed the table lists, the event filter and its route when it comes here.
"""

from __future__ import annotations

from functools import reduce

from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from binlake.filter import Rules
from binlake.schema import WindowSchemas
from binlake.window.extras import Extra
from spark_jobs.decode import TALLIES
from spark_jobs.lake import local_frame

_EXTRAS = "x_db STRING, x_table STRING, x_since BIGINT, x_until BIGINT, x_names ARRAY<STRING>, x_values ARRAY<STRING>"
_IMAGES = ("before", "after")


def filtered(
    spark: SparkSession, rows: DataFrame, schemas: WindowSchemas, rules: Rules, added: list[Extra]
) -> tuple[DataFrame, Observation]:
    """(rows of `mutation` with the columns `added`, what was left out once they are written).

    Raises ConfigError for an expression.
    """
    counted = Observation("filtered")
    sums = [F.sum(F.when(F.col("op") == op, F.col("commit_ts"))).alias(op) for op in TALLIES]
    kept = rows
    if rules.expressions:
        kept = rows.withColumn("dropped", dropped(schemas, rules))
        sums.append(F.sum(F.when(F.col("dropped"), 1)).alias("expression_filter"))
    kept = kept.observe(counted, *sums).where(~F.col("op").isin(*TALLIES))
    if rules.expressions:
        kept = kept.where(~F.col("dropped")).drop("dropped")
    return _completed(spark, kept, added), counted


def losses(counted: Observation) -> dict[str, int]:
    """By reason, what was left out: rows, and whole transactions for `loopback`. After the rows are written."""
    return {reason: int(number) for reason, number in sorted(counted.get.items()) if number}


def dropped(schemas: WindowSchemas, rules: Rules) -> Column:
    """TRUE for the rows that the expression filter drops; by the definition of each row's place (R-19)."""
    found = F.lit(False)
    for db, table in rules.expressions.tables():
        for since, until, state in schemas.spans():
            definition = state.find(db, table)
            if definition is None or not rules.keeps(definition.db, definition.name):
                continue
            here = (F.col("source_db") == definition.db) & (F.col("source_table") == definition.name)
            here &= (F.col("commit_ts") >= since) & (F.col("commit_ts") < until)
            for op, sql in rules.expressions.conditions(definition).items():
                # CASE, not AND: an expression sees no row but those of its table.
                found = F.when(here & (F.col("op") == op), F.expr(sql)).otherwise(found)
    return found


def _completed(spark: SparkSession, rows: DataFrame, added: list[Extra]) -> DataFrame:
    """Both images with the columns that their target has besides the source's."""
    if not added:
        return rows
    values = [(x.db, x.table, x.since, x.until, list(x.values), list(x.values.values())) for x in added]
    places = F.broadcast(local_frame(spark, values, _EXTRAS))
    here = [
        F.col("source_db") == F.col("x_db"),
        F.col("source_table") == F.col("x_table"),
        F.col("commit_ts") >= F.col("x_since"),
        F.col("commit_ts") < F.col("x_until"),
    ]
    joined = rows.join(places, reduce(lambda a, b: a & b, here), "left")
    more = F.map_from_arrays("x_names", "x_values")
    images = {
        name: F.when(F.col("x_names").isNull() | F.col(name).isNull(), F.col(name)).otherwise(F.map_concat(name, more))
        for name in _IMAGES
    }
    return joined.withColumns(images).select(*rows.columns)
