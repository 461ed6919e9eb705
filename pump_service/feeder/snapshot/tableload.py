"""What has been read of one table of a load."""

from __future__ import annotations

import json
from dataclasses import dataclass

from binlake.mysqlbinlog.tablerows.ranges import Ranges


@dataclass
class TableLoad:
    """What has been read of a table whose definition in the catalog has this id."""

    table_id: int
    ranges: Ranges
    rows: int = 0
    chunks: int = 0

    def to_json(self) -> str:
        """For the journal."""
        done, ranges = self.ranges.is_complete, self.ranges.store()
        return json.dumps(
            {"table_id": self.table_id, "rows": self.rows, "chunks": self.chunks, "done": done, "ranges": ranges}
        )

    @classmethod
    def from_json(cls, text: str) -> TableLoad:
        """Parse the result of `to_json`."""
        values = json.loads(text)
        return cls(values["table_id"], Ranges.of(values["ranges"]), values["rows"], values["chunks"])
