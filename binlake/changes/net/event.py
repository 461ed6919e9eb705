"""A row change as the input of compaction: images of canonical text at a position of the total order (invariant 4)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from binlake.errors import SchemaError

Row = Mapping[str, str | None]
"""Column name -> canonical text (None = NULL)."""

Op = Literal["insert", "update", "delete"]


@dataclass(frozen=True)
class RowEvent:
    """One row change. `before` is None for an insert, `after` for a delete; both are full images.

    Events are ordered by (commit_ts, start_ts, seq).
    """

    commit_ts: int
    start_ts: int
    seq: int
    op: Op
    before: Row | None
    after: Row | None

    @property
    def position(self) -> tuple[int, int, int]:
        """The position of the event in the total order."""
        return self.commit_ts, self.start_ts, self.seq

    def require_images(self) -> tuple[Row | None, Row | None]:
        """(before, after); raises SchemaError if the event does not have exactly the images that its op needs."""
        needs = {"insert": (False, True), "update": (True, True), "delete": (True, False)}[self.op]
        if (self.before is not None, self.after is not None) != needs:
            raise SchemaError(
                f"a row change of kind {self.op} has the wrong images", where={"commit_ts": self.commit_ts}
            )
        return self.before, self.after


def encode_row_key(row: Row, columns: Sequence[str]) -> str:
    """JSON array of the texts of `columns`; unlike joined text, it is different for different keys. Raises KeyError."""
    return json.dumps([row[name] for name in columns], ensure_ascii=False, separators=(",", ":"))
