"""What has been read of one table of a load."""

from __future__ import annotations

import json
from dataclasses import dataclass

from binlake.mysqlbinlog.tablerows.ranges import KeyRanges


@dataclass
class TableLoad:
    """What has been read of a table whose definition in the catalog has this id. `is_visible`: some of its rows are
    committed; `bytes`: of the prewrites."""

    table_id: int
    ranges: KeyRanges
    rows: int = 0
    chunks: int = 0
    is_visible: bool = False
    bytes: int = 0

    def to_json(self) -> str:
        """For the journal."""
        done, ranges = self.ranges.is_complete, self.ranges.store()
        counts = {"table_id": self.table_id, "rows": self.rows, "chunks": self.chunks}
        return json.dumps({**counts, "done": done, "ranges": ranges, "visible": self.is_visible, "bytes": self.bytes})

    @classmethod
    def from_json(cls, text: str) -> TableLoad:
        """Parse the result of `to_json`."""
        values = json.loads(text)
        ranges, counts = KeyRanges.of(values["ranges"]), (values["rows"], values["chunks"])
        # A load that an older version began has neither: it commits all rows at its end.
        return cls(values["table_id"], ranges, *counts, values.get("visible", False), values.get("bytes", 0))
