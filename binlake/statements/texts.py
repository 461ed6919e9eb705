"""Texts of rows as they lie in one Arrow buffer: those of neighbours are joined already, whatever a batch takes."""

from __future__ import annotations

from typing import Any

import numpy as np


class Texts:
    """A large string column without NULL whose texts all end with a comma."""

    def __init__(self, column: Any) -> None:
        offsets, data = column.buffers()[1:]
        self._ends = (
            np.frombuffer(offsets, np.int64, len(column) + 1, 8 * column.offset) if len(column) else np.zeros(1)
        )
        self._data = memoryview(data if data is not None else b"")

    @property
    def sizes(self) -> Any:
        """Bytes of each text (numpy), with its comma."""
        return np.diff(self._ends)

    def joined(self, start: int, stop: int) -> bytes:
        """The texts of the rows from `start` up to `stop`, one at least, with commas between them (UTF-8)."""
        return bytes(self._data[int(self._ends[start]) : int(self._ends[stop]) - 1])
