"""Tells whether delta-rs can commit to a Delta table: it cannot if the table has features that it does not write."""

from __future__ import annotations

from deltalake import DeltaTable

from binlake.lake.opentable import open_table
from binlake.lake.paths import LakePaths
from binlake.lake.tables import LakeTable

_DATED_VERSIONS = "inCommitTimestamp"
"""A feature of tables created by older versions of Binlake."""


def can_delta_rs_commit(paths: LakePaths, table: LakeTable) -> bool:
    """False when `table` exists and delta-rs would refuse to commit to it."""
    place = paths.locate_table(table.name)
    if not DeltaTable.is_deltatable(place):
        return True
    return _DATED_VERSIONS not in (open_table(place).protocol().writer_features or ())
