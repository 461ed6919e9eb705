"""`[mask]`: columns whose values the pages show only to those who may edit the replication's DAG."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

from pydantic import Field, field_validator

from binlake.base.sections import Section


class MaskSection(Section):
    """Columns whose values the pages and their files hide from those who may not edit the replication's DAG."""

    columns: tuple[str, ...] = Field(
        (),
        description="`db.table.column`, each part a name or a pattern with `*` and `?`, without regard to case; the"
        " names are those that the pages show",
    )

    @field_validator("columns")
    @classmethod
    def _require_three_parts(cls, columns: tuple[str, ...]) -> tuple[str, ...]:
        for pattern in columns:
            if len(pattern.split(".")) != 3 or not all(pattern.split(".")):
                raise ValueError(f"{pattern!r} is not `db.table.column`: for a dot inside a name write `?`")
        return columns

    def find_hidden(self, db: str, table: str, names: Iterable[str]) -> frozenset[str]:
        """The columns of `names` that are hidden in this table."""
        patterns = [column for *place, column in self._split() if _matches(place, (db, table))]
        return frozenset(name for name in names if any(_matches([pattern], (name,)) for pattern in patterns))

    def touches(self, db: str, table: str) -> bool:
        """Whether a pattern fits the table, whatever columns it has."""
        return any(_matches(place, (db, table)) for *place, _ in self._split())

    def _split(self) -> list[list[str]]:
        return [pattern.split(".") for pattern in self.columns]


def _matches(patterns: Iterable[str], names: Iterable[str]) -> bool:
    # A bracket is a character of a name here, not a set.
    return all(
        fnmatchcase(name.casefold(), pattern.casefold().replace("[", "[[]"))
        for pattern, name in zip(patterns, names, strict=True)
    )
