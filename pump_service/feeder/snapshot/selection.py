"""Which tables of a source are followed and loaded, as recorded in the journal: a change of the settings brings tables.

The settings of a restarted feeder may follow tables that were left out before, or load tables whose rows were not
loaded. Such a change takes effect at one position of the log, together with the definitions of these tables: up to
there, what was left out stays so.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from binlake.common.sections import BlockAllowList
from binlake.mysqlbinlog.tablerows.link import Name
from binlake.pump_service.feeder.journal import FeederJournal
from binlake.pump_service.feeder.settings import SnapshotSection, SourceFile

FACT = "selection of "
"""Prefix of the journal's fact, completed by the source's name."""


@dataclass(frozen=True)
class Selection:
    """`ignore_tables` and `snapshot.block-allow-list` of a source."""

    source: SourceFile

    @classmethod
    def read(cls, journal: FeederJournal, source: SourceFile) -> Selection | None:
        """What the journal has of `source`; None = nothing: it was last read by an older version, or never."""
        text = journal.read_fact(FACT + source.name)
        if not text:
            return None
        stored: dict[str, Any] = json.loads(text)
        lists = stored["lists"] and BlockAllowList.model_validate(stored["lists"])
        snapshot = SnapshotSection.model_construct(block_allow_list=lists)
        return cls(source.model_copy(update={"ignore_tables": tuple(stored["ignore"]), "snapshot": snapshot}))

    def build_facts(self) -> dict[str, str]:
        """What records it."""
        return {FACT + self.source.name: json.dumps(self._to_json())}

    def _to_json(self) -> dict[str, Any]:
        lists = self.source.snapshot.block_allow_list
        dumped = None if lists is None else lists.model_dump(mode="json", by_alias=True)
        return {"ignore": list(self.source.ignore_tables), "lists": dumped}

    def is_same(self, other: Selection) -> bool:
        """Whether both choose the same tables by the same rules."""
        return self._to_json() == other._to_json()

    def has_rows_of(self, db: str, table: str) -> bool:
        """Whether the table is followed and its rows are loaded."""
        return not self.source.ignores(db, table) and self.source.snapshot.loads(db, table)


class FollowedTables:
    """Which tables of `source` are left out now: also those that `former`, the settings up to now, left out, until
    `take_effect`."""

    def __init__(self, source: SourceFile, former: Selection | None) -> None:
        self.present = Selection(source)
        self.former = None if former is None or former.is_same(self.present) else former

    def ignores(self, db: str, table: str) -> bool:
        """True for a table that is left out, and for a database (`table` "") whose tables all are."""
        sources = [self.present.source, *([self.former.source] if self.former is not None else [])]
        return any(source.ignores(db, table) for source in sources)

    def list_new(self, tables: Iterable[Name]) -> list[Name]:
        """Those of `tables` that are followed, or of which rows are loaded, from now on."""
        former, present = self.former, self.present
        if former is None:
            return []
        return [
            name
            for name in tables
            if not present.source.ignores(*name)
            and (former.source.ignores(*name) or (present.has_rows_of(*name) and not former.has_rows_of(*name)))
        ]

    def take_effect(self) -> Callable[[], None]:
        """Forget the former settings; returns a function that undoes this."""
        former, self.former = self.former, None

        def restore() -> None:
            self.former = former

        return restore
