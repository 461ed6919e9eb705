"""Writes the lake's tables as Markdown from their definitions: the generated part of docs/reference/lake-tables.md."""

from __future__ import annotations

from binlake.lake.controltables import CONTROL_TABLES
from binlake.lake.tables import STAGE_TABLES, LakeTable

BEGIN = "<!-- tables: written by `make docs` from binlake/lake/tables.py and controltables.py -->"
END = "<!-- end of tables -->"


def replace_tables_section(page: str) -> str:
    """`page` with the section between its marks rewritten. Raises ValueError for a page without marks."""
    head, _, rest = page.partition(BEGIN)
    _, mark, tail = rest.partition(END)
    if not mark:
        raise ValueError(f"the page has no section between {BEGIN!r} and {END!r}")
    return f"{head}{BEGIN}\n\n{render_tables()}\n{END}{tail}"


def render_tables() -> str:
    """One section per table."""
    return "\n".join(_render_section(table) for table in (*STAGE_TABLES, *CONTROL_TABLES))


def _render_section(table: LakeTable) -> str:
    layout = f"; partitioned by {_format_names(table.partitioned_by)}" if table.partitioned_by else ""
    layout += f"; closed days in the order of {_format_names(table.clustered_by)}" if table.clustered_by else ""
    rows = "\n".join(f"| `{column.name}` | {column.type} | {column.comment} |" for column in table.columns)
    return (
        f"### `{table.name}`\n\n{table.comment}. Replaced files are kept "
        f"{table.kept_days} days{layout}.\n\n| Column | Type | Meaning |\n|---|---|---|\n{rows}\n"
    )


def _format_names(columns: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in columns)
