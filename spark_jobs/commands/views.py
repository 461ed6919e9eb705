"""The audit's queries in Spark SQL: views over the lake, and a query for a table as of a commit_ts.

The views are plain (`sql/audit_*.sql`): a query filters on table, key or commit_ts, and Delta skips files without
matches by their statistics.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from binlake.audit.audit import Audit
from binlake.base import sqlfiles
from binlake.base.lakecolumns import Mirror
from binlake.errors import ConfigError
from binlake.lake.columntypes import choose_arrow_type
from binlake.lake.paths import LakePaths
from binlake.rows.schema import TableDef
from binlake.rules import Rules

if TYPE_CHECKING:
    # The command line prints these texts without Spark.
    from pyspark.sql import SparkSession

VIEWS = {
    "binlake_change": "audit_change",
    "binlake_image": "audit_image",
    "binlake_transaction": "audit_transaction",
    "binlake_passage": "audit_passage",
}
"""View -> the file in `sql/` with its query."""

_TYPES = {
    pa.int32(): "INT",
    pa.int64(): "BIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.date32(): "DATE",
    pa.timestamp("us"): "TIMESTAMP_NTZ",
}


def create_views(paths: LakePaths) -> list[str]:
    """A CREATE statement for each audit view of this lake."""
    return [f"CREATE OR REPLACE TEMPORARY VIEW {view} AS\n{_query(file, paths)}" for view, file in VIEWS.items()]


def register(spark: SparkSession, paths: LakePaths) -> None:
    """Create the audit views in this session."""
    for text in create_views(paths):
        spark.sql(text)


def render_table_query(paths: LakePaths, db: str, table: str, ts: int | None = None, rules: Rules | None = None) -> str:
    """A query for the table as of the commit_ts `ts` (None: the end of the lake), with the column types of its mirror.

    Raises LostRange and SchemaError as Audit.read_table_as_of, ConfigError for a table without a key.
    """
    audit = Audit(paths, rules)
    ts = audit.read_merged_range()[1] if ts is None else ts
    definition = audit.read_definition_at(db, table, ts)
    if definition.find_identity().kind == "row":
        raise ConfigError(
            "a query cannot list the rows of a table without a key, which may be equal",
            where={"table": f"{db}.{table}"},
            hint="use `binlake audit table`",
        )
    base = audit.find_base_version(definition.db, definition.name, ts)
    parts = [_render_changed_rows(definition)]
    if base.delta_version >= 0:
        parts.insert(0, _render_unchanged_rows(definition, paths, base.delta_version))
    remark = f"-- inexact: {base.inexact}\n" if base.inexact else ""
    return (
        f"{remark}WITH later AS ({_render_net_changes(definition, paths, audit.find_base_end_ts(base), ts)})\n"
        + "\nUNION ALL\n".join(parts)
    )


def _query(file: str, paths: LakePaths) -> str:
    return sqlfiles.read_statement(file).replace("{lake}", paths.root)


def _render_net_changes(definition: TableDef, paths: LakePaths, lo: int, hi: int) -> str:
    return (
        f"SELECT key, max_by(image, place) AS image FROM (\n{_query('audit_image', paths)}\n) "
        f"WHERE db = {_quote_text(definition.db)} AND `table` = {_quote_text(definition.name)} "
        f"AND commit_ts > {lo} AND commit_ts <= {hi} GROUP BY key"
    )


def _render_unchanged_rows(definition: TableDef, paths: LakePaths, version: int) -> str:
    columns = ", ".join(_quote_name(column.name) for column in definition.row_columns)
    place = paths.locate_mirror(definition.db, definition.name)
    old = f"delta.`{place}` VERSION AS OF {version}"
    return f"SELECT {columns} FROM {old} LEFT ANTI JOIN later ON {Mirror.ROWKEY} = later.key"


def _render_changed_rows(definition: TableDef) -> str:
    columns = ", ".join(
        f"{_render_typed_column(column)} AS {_quote_name(column.name)}" for column in definition.row_columns
    )
    return f"SELECT {columns} FROM later WHERE image IS NOT NULL"


def _render_typed_column(column: Any) -> str:
    """SQL that casts a column's image to the mirror's type; NULL if that type cannot hold it, as in the mirror."""
    text, kind = f"image[{_quote_text(column.name)}]", choose_arrow_type(column)
    if pa.types.is_string(kind):
        return text
    if pa.types.is_binary(kind):
        return f"unhex({text})"
    if pa.types.is_decimal(kind):
        return f"try_cast({text} AS DECIMAL({kind.precision}, {kind.scale}))"
    if pa.types.is_timestamp(kind) and kind.tz:
        return f"try_cast(concat({text}, 'Z') AS TIMESTAMP)"
    return f"try_cast({text} AS {_TYPES[kind]})"


def _quote_name(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def _quote_text(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
