"""Counts the texts in which bytes without a character became question marks (`invalid-text = "replace"`), by table.

One count for the process: the writers of rows are cached for all batches of all sources, and a feeder's sources never
have two tables of one name. A batch that is encoded again after an error is counted again.
"""

from __future__ import annotations

import threading
from collections import Counter

import structlog

log = structlog.get_logger(__name__)


class ReplacedTexts:
    """The number of such texts by `db.table`; safe in threads."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def add(self, table: str, column: str) -> None:
        """Count a text of `table`. The 1st, 10th, 100th ... of a table are logged: a table may have millions."""
        with self._lock:
            self._counts[table] += 1
            count = self._counts[table]
        if str(count).strip("0") == "1":
            log.warning("invalid_texts_replaced", table=table, column=column, texts=count)

    def get_counts(self) -> dict[str, int]:
        """The counts so far, of the tables that have any."""
        with self._lock:
            return dict(self._counts)


REPLACED = ReplacedTexts()
"""This process's count."""
