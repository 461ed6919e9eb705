"""Undo a run of row changes: for each key, its row before the first change and its row after the last one.

The counterpart of `net`, with the same parts of each event. For rows without a key, the counts are reversed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from binlake.changes.net.event import Row, RowEvent
from binlake.changes.net.net import complete_event, compute_net_changes, split_by_key
from binlake.rows.schema import RowIdentity


@dataclass(frozen=True)
class Undo:
    """One key: its row `before` the run and `after` it, None if it had no row.

    Tables without a key: `copies` rows of `before` are restored, or of `after` removed.
    """

    key: str
    before: Row | None
    after: Row | None
    copies: int = 1


def undo_changes(
    events: Iterable[RowEvent], identity: RowIdentity, filled: Mapping[str, str | None] | None = None
) -> list[Undo]:
    """The undo of one table's `events` (in any order), for each key whose row differs before and after them."""
    if identity.kind == "row":
        return [
            Undo(net.key, net.before, net.after, net.copies) for net in compute_net_changes(events, identity, filled)
        ]
    first: dict[str, Row | None] = {}
    last: dict[str, Row | None] = {}
    for event in sorted((complete_event(event, filled or {}) for event in events), key=lambda event: event.position):
        for key, before, after in split_by_key(event, identity):
            first.setdefault(key, before)
            last[key] = after
    return [Undo(key, first[key], last[key]) for key in first if first[key] != last[key]]
