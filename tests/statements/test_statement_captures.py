"""Every row that TiDB had at the end of the `keys` capture is the same after writing it to the target and reading
it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.mariadb import MariaDb
from support.windows import target_of

from binlake.common.sql import Dialect
from binlake.ddl.ddls import plan_ddls
from binlake.dialect import map_ddl
from binlake.rows.schema import ColumnInfo, DdlJob, SchemaState, TableDef, WindowDdl
from binlake.rows.schema import mysqltypes as t
from binlake.rules import Rules
from binlake.statements import BatchLimits, TableStatements, build_images_from_rows
from binlake.statements.literal import quote_name, quote_qualified_name
from binlake.target.definitions.definitions import require_definitions
from binlake.target.session.session import TargetSession
from binlake.testkit.captures.capture import Capture

KEYS = Path(__file__).resolve().parents[1] / "captures" / "keys"


def canonical(value: Any) -> str | None:
    """A value of states.jsonl as canonical text."""
    return value["hex"].upper() if isinstance(value, dict) else value


def create_tables(session: TargetSession, jobs: list[DdlJob], dialect: Dialect) -> SchemaState:
    """Run the DDL texts of the history and return the schema at the end."""
    logged = [WindowDdl(job.finished_ts, job.start_ts, job.id, 5, job.query) for job in jobs]
    placed = [(job.finished_ts, job) for job in jobs]
    for row in plan_ddls(SchemaState(), logged, placed, Rules()):
        if not row.reason:
            source = replace(row, sql=row.query)
            for statement in map_ddl(source, dialect).sql:
                session.execute(statement)
    return SchemaState().fold(placed)


def fill(session: TargetSession, table: TableDef, images: list[dict[str, str | None]], dialect: Dialect) -> None:
    out, columns = (
        TableStatements(table, 0, limits=BatchLimits(7), dialect=dialect),
        build_images_from_rows(images, [c.name for c in table.row_columns]),
    )
    keyless = table.find_identity().kind == "row"
    for batch in out.render_inserts(columns, [1] * len(images)) if keyless else out.render_writes(columns):
        for sql in batch.sql:
            session.execute(sql)
        if batch.verify_sql:
            assert session.fetch_rows(batch.verify_sql) == [(batch.verify_rows,)]


def empty(session: TargetSession, table: TableDef, images: list[dict[str, str | None]], dialect: Dialect) -> None:
    out, columns = (
        TableStatements(table, 0, limits=BatchLimits(7), dialect=dialect),
        build_images_from_rows(images, [c.name for c in table.row_columns]),
    )
    keyless = table.find_identity().kind == "row"
    for batch in out.render_image_deletes(columns, [1] * len(images)) if keyless else out.render_deletes(columns):
        affected = [session.execute(sql) for sql in batch.sql]
        assert sum(affected) == batch.rows


def shown(column: ColumnInfo) -> str:
    name = quote_name(column.name)
    if column.tp == t.BIT:
        return f"LPAD(HEX({name}), {(column.flen + 7) // 8 * 2}, '0')"
    return f"HEX({name})" if column.is_binary else f"CAST({name} AS CHAR)"


@pytest.mark.mariadb
def test_rows_with_all_kinds_of_keys_round_trip(empty_server: MariaDb) -> None:
    # S0-22
    capture = Capture(KEYS)
    target = target_of(empty_server)
    session = TargetSession(target)
    try:
        state = create_tables(session, [DdlJob.parse(text) for text in capture.read_job_texts()], target.db_type)
        last = list(capture.read_states())[-1]
        filled = 0
        for content in last.contents:
            table = state.find(content["schema"], content["name"])
            if table is None or table.kind != "table" or not content["rows"]:
                continue
            require_definitions(session, target, [table])
            images = [dict(zip(content["columns"], map(canonical, row), strict=True)) for row in content["rows"]]
            fill(session, table, images, target.db_type)
            columns = ", ".join(shown(column) for column in table.row_columns)
            back = session.fetch_rows(f"SELECT {columns} FROM {quote_qualified_name(table.db, table.name)}")
            wanted = [tuple(image[c.name] for c in table.row_columns) for image in images]
            assert sorted(map(repr, back)) == sorted(map(repr, wanted)), table.name
            empty(session, table, images, target.db_type)
            assert session.fetch_rows(f"SELECT COUNT(*) FROM {quote_qualified_name(table.db, table.name)}") == [(0,)], (
                table.name
            )
            filled += 1
        assert filled > 15
    finally:
        session.close()
