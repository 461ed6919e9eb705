"""What decoding left out, where Spark writes the rows: tally rows counted on their way and dropped."""

from __future__ import annotations

from collections import Counter
from functools import reduce

from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F

from binlake.base.lakecolumns import Mutation
from spark_jobs.merge.decode import BY_TABLE, TALLIES

_TABLES, _ROWS = "of tables", "rows"


def counted(rows: DataFrame) -> tuple[DataFrame, Observation]:
    """(rows of `mutation`, what was left out once they are written) of rows with a tally among them."""
    found = Observation("filtered")
    sums = [F.sum(F.when(F.col(Mutation.OP) == op, F.col(Mutation.COMMIT_TS))).alias(op) for op in TALLIES]
    of_table = reduce(lambda a, b: a | b, (F.col(Mutation.OP).startswith(prefix) for prefix in BY_TABLE))
    tables = F.collect_list(F.when(of_table, F.struct("op", "commit_ts"))).alias(_TABLES)
    is_row = ~F.col(Mutation.OP).isin(*TALLIES) & ~of_table
    return rows.observe(found, F.count_if(is_row).alias(_ROWS), *sums, tables).where(is_row), found


def count_of(tally: Observation) -> int:
    """The rows, once they are written: a commit that rewrites files counts those of other windows as well."""
    return int(tally.get[_ROWS])


def losses(tally: Observation) -> dict[str, int]:
    """By reason, what was left out: rows, and whole transactions for `loopback`; what BY_TABLE counts, by table. After
    the rows are written."""
    found = Counter(
        {reason: int(number or 0) for reason, number in tally.get.items() if reason not in (_ROWS, _TABLES)}
    )
    for op, number in tally.get[_TABLES]:
        found[op] += number
    return {reason: number for reason, number in sorted(found.items()) if number}
