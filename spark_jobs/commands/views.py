"""The audit's queries as SQL: views over the lake, a table as of a commit_ts, and a table's typed history.

The views are plain (`sql/audit_*.sql`): a query filters on table, key or commit_ts, and Delta skips files without
matches by their statistics. They and a table as of a commit_ts are Spark SQL; the history is also SQL of DuckDB.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from binlake.audit.audit import Audit
from binlake.common import sql
from binlake.common.lakecolumns import Mirror
from binlake.errors import ConfigError
from binlake.lake.columntypes import choose_arrow_type
from binlake.lake.paths import LakePaths
from binlake.lake.tables import MUTATION
from binlake.rows.schema import ColumnInfo, TableDef
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
}


@dataclass(frozen=True)
class SqlEngine:
    """How an engine's SQL differs: quotes of names and texts, types of times, a Delta table by its path (`name` or
    `text`, quoted), the time of a commit_ts."""

    name_quote: str
    text_escape: Mapping[str, str]
    local_time: str
    utc_time: str
    table: str
    commit_time: str

    def quote_name(self, name: str) -> str:
        """`name` as an identifier."""
        return f"{self.name_quote}{name.replace(self.name_quote, self.name_quote * 2)}{self.name_quote}"

    def quote_text(self, text: str) -> str:
        """`text` as a literal."""
        return "'" + "".join(self.text_escape.get(sign, sign) for sign in text) + "'"

    def scan(self, path: str) -> str:
        """The Delta table at `path`."""
        return self.table.format(name=self.quote_name(path), text=self.quote_text(path))


_SPARK = SqlEngine(
    "`",
    {"\\": "\\\\", "'": "\\'"},
    "TIMESTAMP_NTZ",
    "TIMESTAMP",
    "delta.{name}",
    "timestamp_millis(shiftright(commit_ts, 18))",
)
_DUCKDB = SqlEngine(
    '"',
    {"'": "''"},
    "TIMESTAMP",
    "TIMESTAMPTZ",
    "delta_scan({text})",
    "make_timestamptz((commit_ts >> 18) * 1000)",
)
ENGINES: Mapping[str, SqlEngine] = {"spark": _SPARK, "duckdb": _DUCKDB}
"""The engines that `render_history_query` writes SQL for."""


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


def render_history_query(
    paths: LakePaths, db: str, table: str, engine: str = "spark", rules: Rules | None = None
) -> str:
    """A query for all changes of the table that the lake holds, in SQL of `engine`, a key of ENGINES.

    A row for each image, as Delta's change data feed has them: `_change_type` is insert, update_preimage,
    update_postimage or delete. The columns are those of the table at the end of the lake, with the types of its
    mirror. Raises LostRange and SchemaError as Audit.read_definition_at.
    """
    words, audit = ENGINES[engine], Audit(paths, rules)
    definition = audit.read_definition_at(db, table, audit.read_merged_range()[1])
    columns = "".join(
        f"{render_typed_column(column, words)} AS {words.quote_name(column.name)}, "
        for column in definition.row_columns
    )
    of_table = (
        f"FROM {words.scan(paths.locate_table(MUTATION.name))} WHERE db = {words.quote_text(definition.db)} "
        f"AND {words.quote_name('table')} = {words.quote_text(definition.name)}"
    )
    return (
        f"SELECT {columns}_change_type, commit_ts AS _commit_ts, {words.commit_time} AS _commit_timestamp, "
        "start_ts AS _start_ts, seq AS _seq FROM (\n"
        "  SELECT commit_ts, start_ts, seq, before AS image, "
        "CASE op WHEN 'update' THEN 'update_preimage' ELSE op END AS _change_type\n"
        f"  {of_table} AND op <> 'insert'\n"
        "  UNION ALL SELECT commit_ts, start_ts, seq, after AS image, "
        "CASE op WHEN 'update' THEN 'update_postimage' ELSE op END AS _change_type\n"
        f"  {of_table} AND op <> 'delete'\n"
        ") AS images"
    )


def _query(file: str, paths: LakePaths) -> str:
    return sql.read_statement(file).replace("{lake}", paths.root)


def _render_net_changes(definition: TableDef, paths: LakePaths, lo: int, hi: int) -> str:
    return (
        f"SELECT key, max_by(image, place) AS image FROM (\n{_query('audit_image', paths)}\n) "
        f"WHERE db = {_SPARK.quote_text(definition.db)} AND `table` = {_SPARK.quote_text(definition.name)} "
        f"AND commit_ts > {lo} AND commit_ts <= {hi} GROUP BY key"
    )


def _render_unchanged_rows(definition: TableDef, paths: LakePaths, version: int) -> str:
    columns = ", ".join(_SPARK.quote_name(column.name) for column in definition.row_columns)
    old = f"{_SPARK.scan(paths.locate_mirror(definition.db, definition.name))} VERSION AS OF {version}"
    return f"SELECT {columns} FROM {old} LEFT ANTI JOIN later ON {Mirror.ROWKEY} = later.key"


def _render_changed_rows(definition: TableDef) -> str:
    columns = ", ".join(
        f"{render_typed_column(column, _SPARK)} AS {_SPARK.quote_name(column.name)}"
        for column in definition.row_columns
    )
    return f"SELECT {columns} FROM later WHERE image IS NOT NULL"


def render_typed_column(column: ColumnInfo, engine: SqlEngine) -> str:
    """SQL that casts a column's image to the mirror's type; NULL if that type cannot hold it, as in the mirror."""
    text, kind = f"image[{engine.quote_text(column.name)}]", choose_arrow_type(column)
    if pa.types.is_string(kind):
        return text
    if pa.types.is_binary(kind):
        return f"unhex({text})"
    if pa.types.is_decimal(kind):
        return f"try_cast({text} AS DECIMAL({kind.precision}, {kind.scale}))"
    if pa.types.is_timestamp(kind):
        whole = f"try_cast(concat({text}, 'Z') AS {engine.utc_time})"
        return whole if kind.tz else f"try_cast({text} AS {engine.local_time})"
    return f"try_cast({text} AS {_TYPES[kind]})"
