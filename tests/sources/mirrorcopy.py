"""All mirrors of a lake at its end, each read once: an audit of one table reads the whole history of definitions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from binlake.audit.audit import Audit
from binlake.mirror.rows import read_mirror_texts
from binlake.mirror.versions import MirrorVersions

Row = tuple[str | None, ...]


@dataclass(frozen=True)
class MirrorTable:
    """A mirror's rows as canonical texts; `inexact`: why it may lack rows, '' if it does not."""

    columns: tuple[str, ...]
    rows: list[Row]
    inexact: str


def read_mirrors(audit: Audit, ts: int) -> Mapping[tuple[str, str], MirrorTable]:
    """The mirrors of all tables at `ts`, the mirrors' own position. A table that has no row yet may have no mirror."""
    versions, tables = MirrorVersions(audit.paths).read_latest(ts), audit.read_tables_at(ts)
    found = {}
    for name, version in versions.items():
        definition = tables.find(*name)
        if version.dropped or definition is None:
            continue
        rows: list[Row] = []
        if version.delta_version >= 0:
            texts = read_mirror_texts(definition, audit.read_rows_of(version).to_table())
            rows = list(zip(*(texts[column.name] for column in definition.row_columns), strict=True))
        columns = tuple(column.name for column in definition.row_columns)
        found[name] = MirrorTable(columns, rows, version.inexact)
    return found
