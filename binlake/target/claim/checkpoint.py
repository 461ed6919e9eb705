"""The original's checkpoint row, byte for byte its JSON: numbers stay numbers, unknown keys stay (S3-05, S3-06).

Meaning: everything at or below commitTS is downstream; `consistent` true = the target equals the source at exactly
commitTS (invariant 8).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from binlake.errors import CheckpointConflict, TargetRefused
from binlake.statements.literal import qualified
from binlake.target.session.failures import MISSING, code_of
from binlake.target.session.session import Session


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint: `commit_ts` an integer, `ts_map` as the original has it, `raw` the JSON it was read from."""

    commit_ts: int
    consistent: bool
    ts_map: Mapping[str, int] = field(default_factory=dict)
    schema_version: int = 0
    raw: Mapping[str, Any] = field(default_factory=dict, compare=False)

    @classmethod
    def from_json(cls, text: str) -> Checkpoint:
        """Read the column checkPoint; raises CheckpointConflict when it is not the original's JSON."""
        try:
            raw = json.loads(text)
            return cls(
                int(raw["commitTS"]),
                bool(raw.get("consistent", False)),
                dict(raw.get("ts-map") or {}),
                int(raw.get("schema-version") or 0),
                raw,
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointConflict(
                f"the checkpoint row cannot be read: {error!r}",
                where={"checkPoint": text[:200]},
                hint='correct it by hand: {"consistent":false,"commitTS":…,"ts-map":{}}',
            ) from error

    def to_json(self) -> str:
        """JSON for the column: the keys it was read with in their order, changed values in place."""
        value: dict[str, Any] = {"consistent": False, "commitTS": 0, "ts-map": {}, **self.raw}
        value |= {"consistent": self.consistent, "commitTS": self.commit_ts, "ts-map": dict(self.ts_map)}
        if self.schema_version or "schema-version" in value:
            value["schema-version"] = self.schema_version
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))

    def moved(self, commit_ts: int, schema_version: int, *, consistent: bool) -> Checkpoint:
        """The checkpoint at `commit_ts`; the schema version never goes back (tidb-binlog 5.8)."""
        version = max(self.schema_version, schema_version)
        return Checkpoint(commit_ts, consistent, self.ts_map, version, self.raw)

    def marked(self, *, consistent: bool) -> Checkpoint:
        """The same place with another `consistent`."""
        return Checkpoint(self.commit_ts, consistent, self.ts_map, self.schema_version, self.raw)


class CheckpointTable:
    """`schema`.checkpoint for one cluster."""

    def __init__(self, schema: str, cluster_id: int) -> None:
        self._name = qualified(schema, "checkpoint")
        self._cluster_id = cluster_id

    def read(self, session: Session, *, lock: bool = False) -> Checkpoint | None:
        """The cluster's checkpoint, or None when table or row are missing; cluster 0 reads the only row.

        Raises CheckpointConflict for an unreadable row, or several rows for cluster 0.
        """
        sql = f"SELECT checkPoint FROM {self._name}"
        sql += f" WHERE clusterID = {self._cluster_id}" if self._cluster_id else ""
        try:
            found = session.rows(sql + (" FOR UPDATE" if lock else ""))
        except TargetRefused as error:
            if code_of(error) in MISSING:
                return None
            raise
        if len(found) > 1:
            raise CheckpointConflict("the checkpoint table has rows of several clusters", hint="name the cluster id")
        return Checkpoint.from_json(found[0][0]) if found else None

    def write(self, session: Session, checkpoint: Checkpoint) -> None:
        """Put the row, as the original does."""
        session.write(
            f"REPLACE INTO {self._name} (clusterID, checkPoint) VALUES (%s, %s)",
            (self._cluster_id, checkpoint.to_json()),
        )
