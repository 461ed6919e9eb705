"""The only error raised inside the mapping: `map_ddl` turns it into TargetRefused with the position of the DDL."""

from __future__ import annotations


class Unmappable(Exception):
    """A clause that the target's dialect cannot express; `clause` names it for people."""

    def __init__(self, clause: str) -> None:
        self.clause = clause
        super().__init__(clause)
