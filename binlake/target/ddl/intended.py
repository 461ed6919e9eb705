"""What an intent records of its DDL: whose definitions it changes, what they were and are to be (hazards R-04)."""

from __future__ import annotations

import json
from dataclasses import dataclass

from binlake.target.ddl.proof import Evidence
from binlake.target.definitions.definitions import Expected, Name


@dataclass(frozen=True)
class Intended:
    """`touched`: the names whose definitions show whether it ran; `after` None where it is not known what it leaves.

    `refused`: the target answered with an error and nothing of the DDL ran. `before`: what the target showed when it
    was begun; None in an intent of a version that did not keep that.
    """

    touched: tuple[Name, ...]
    after: Expected | None
    refused: bool = False
    before: Evidence | None = None

    def to_json(self) -> str:
        """JSON for the column binlake_progress.ddl_expected."""
        after = json.loads(self.after.to_json()) if self.after is not None else None
        before = self.before.to_dict() if self.before is not None else None
        values = {"touched": self.touched, "after": after, "refused": self.refused, "before": before}
        return json.dumps(values, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Intended:
        """The value of `to_json`; an intent of an older version has no `touched`: its expectation names all."""
        raw = json.loads(text)
        if "touched" not in raw:
            expected = Expected.from_json(text)
            return cls(tuple(expected.names), expected)
        after = Expected.from_json(json.dumps(raw["after"])) if raw["after"] is not None else None
        before = Evidence(**raw["before"]) if raw.get("before") else None
        return cls(tuple((db, name) for db, name in raw["touched"]), after, raw.get("refused", False), before)
