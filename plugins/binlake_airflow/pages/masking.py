"""Hides values of masked columns from the views; what is hidden never reaches a template, a file or JSON.

A row is identified by its key, so a key with a masked column is hidden as a whole, and no history is looked up by it:
whoever may guess keys would learn which ones exist.
"""

from __future__ import annotations

from collections.abc import Iterable

from binlake.audit.audit import Audit
from binlake.config.airflow import MaskSection
from binlake.errors import BinlakeError
from binlake.lake.mutations import Row

HIDDEN = "•••"
"""What stands for each hidden value, NULL included."""


class Masks:
    """What is hidden from the user of one request; `mask` None: nothing."""

    def __init__(self, mask: MaskSection | None) -> None:
        self._mask = mask if mask is not None and mask.columns else None
        self._keys: dict[tuple[str, str], bool] = {}

    def find_hidden(self, db: str, table: str, names: Iterable[str]) -> frozenset[str]:
        """The columns of `names` whose values are hidden."""
        return frozenset() if self._mask is None else self._mask.find_hidden(db, table, names)

    def hides_key(self, audit: Audit, db: str, table: str) -> bool:
        """Whether a key that the table has or had contains a hidden column; also if its definitions are unknown."""
        if self._mask is None or not self._mask.touches(db, table):
            return False
        if (db, table) not in self._keys:
            self._keys[db, table] = self._has_hidden_key(audit, db, table)
        return self._keys[db, table]

    def _has_hidden_key(self, audit: Audit, db: str, table: str) -> bool:
        try:
            definitions = audit.read_definitions(db, table, *audit.read_merged_range())
        except BinlakeError:
            return True
        keys = {name for definition in definitions for name in definition.find_identity().columns}
        return bool(self.find_hidden(db, table, keys))


def mask_row(row: Row | None, hidden: frozenset[str]) -> Row | None:
    """`row` with HIDDEN for the values of the columns `hidden`."""
    return row if row is None or not hidden else {n: HIDDEN if n in hidden else v for n, v in row.items()}
