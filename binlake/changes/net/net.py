"""The net change of each key in one segment: the last image wins, or the key is absent.

Rules: data-migration 1.3 and 6.1 (combinations), DESIGN 3.6 (two phases), hazards R-14, R-17.

An update that changes the key is a delete of the old key and a write of the new one. After that, the last event of a
key alone decides: its image, or absence. INSERT followed by DELETE stays a delete, because a replay may find the row.
Whole rows (no key) are counted: +1 for each image that was added, -1 for each removed; a count of zero leaves nothing.

Proof that the two phases, each in any order, equal serial execution: let T be the touched keys and F the final rows of
the table. No two rows of F share a unique value, because the source accepted them together. Rows with keys outside T
are the same before and after, so they are in F. Phase 1 removes the keys of T that are absent in F. A REPLACE of phase
2 removes only rows that share a unique value with a row of F without being that row. Such rows are not in F, so their
key is in T; and their key is present in F (otherwise phase 1 removed it), so its own REPLACE writes its final image,
before or after. A later REPLACE cannot remove a final image, because it shares no unique value with another row of F.
So after phase 2 the table is F, in any order inside a phase, and after any prefix of these statements that ran earlier.
The premise is that the target's unique keys are the source's (checked by `binlake.target.definitions.definitions`).

Impossible changes of one key (S4-09: INSERT of a row that exists, DELETE of one that does not) are found by a sum: each
change of a key adds its difference in rows (+1, 0, -1), and the sum must agree with the first and the last change. So
no order is needed, and there are no false alarms; two contradictions of opposite signs in one segment are not reported.

The SQL form for a table with a key: explode each event to (key, position, image) tuples: (old key, position, NULL)
unless the key stays, and (new key, position, after); then take `max_by(image, position)` by key. `position` must also
order the tuples of one event: the write comes after the delete.

Undoing a run of row changes is the counterpart, with the same parts of each event: for each key, its row before the
first change and its row after the last one. For rows without a key, the counts are reversed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from binlake.common.redaction import redact_key
from binlake.errors import SchemaError
from binlake.rows.schema import RowIdentity

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


@dataclass(frozen=True)
class NetChange:
    """The net change of one key in a segment.

    `delete`: the key is absent at the end, and `before` is the first image seen. `replace`: `after` is the final image.
    `insert` (only tables without a key): `copies` rows of `after` were added. For tables without a key, a `delete`
    removes `copies` rows of `before`. `mutations` counts the row changes that were reduced to this one.
    """

    key: str
    identity: Literal["primary", "unique", "row"]
    op: Literal["delete", "replace", "insert"]
    before: Row | None
    after: Row | None
    copies: int
    first_commit_ts: int
    last_commit_ts: int
    mutations: int


def compute_net_changes(
    events: Iterable[RowEvent],
    identity: RowIdentity,
    filled: Mapping[str, str | None] | None = None,
    *,
    strict: bool = False,
) -> list[NetChange]:
    """The net changes of one table in one segment, by first appearance of the key; `events` in any order.

    `filled`: the values of key columns that images of rows written before ADD COLUMN lack; the images of the result
    have them. `strict`: changes of a key that contradict each other raise SchemaError with key and commit_ts. Raises
    SchemaError for an event with the wrong images, KeyError for an image without a key column.
    """
    ordered = sorted((complete_event(event, filled or {}) for event in events), key=lambda event: event.position)
    if identity.kind == "row":
        return _count_rows(ordered, identity)
    seen = _find_last_images(ordered, identity)
    if strict:
        _require_possible(seen)
    return [_build_keyed_change(key, entry, identity) for key, entry in seen.items()]


def complete_event(event: RowEvent, filled: Mapping[str, str | None]) -> RowEvent:
    """The event, with the columns of `filled` added that its images lack."""
    if not filled:
        return event
    before, after = (None if image is None else {**filled, **image} for image in (event.before, event.after))
    return replace(event, before=before, after=after)


@dataclass
class _Seen:
    """The changes of a key so far."""

    first: int
    last: int
    mutations: int = 0
    before: Row | None = None
    after: Row | None = None
    count: int = 0
    was_there: bool = False


def _find_last_images(events: list[RowEvent], identity: RowIdentity) -> dict[str, _Seen]:
    seen: dict[str, _Seen] = {}
    for event in events:
        for key, before, after in split_by_key(event, identity):
            entry = _visit(seen, key, event)
            if entry.mutations == 1:
                entry.was_there = before is not None
            entry.count += (after is not None) - (before is not None)
            entry.before, entry.after = entry.before or before, after
    return seen


CONTRADICTION = "changes of one key contradict each other"
"""The changes that S4-09 calls impossible; `binlake.spark_jobs.shared.netchange` checks the same with Spark."""
CONTRADICTION_HINT = (
    "the source logged changes that cannot happen in a table (UPDATE IGNORE can cause this), or a transaction "
    "between them is missing. Compare the row with the source (`binlake audit transaction` of a commit_ts shows it, "
    "or verify). Then resume with target.impossible-changes = last, which uses the last of them, or exclude its "
    "commit_ts; or let the other tables continue: `binlake table aside`, then compact again"
)


def _require_possible(seen: Mapping[str, _Seen]) -> None:
    for key, entry in seen.items():
        if entry.count != (entry.after is not None) - entry.was_there:
            where = {"key": redact_key(key), "first_commit_ts": entry.first, "last_commit_ts": entry.last}
            raise SchemaError(CONTRADICTION, where=where, hint=CONTRADICTION_HINT)


def split_by_key(event: RowEvent, identity: RowIdentity) -> Iterator[tuple[str, Row | None, Row | None]]:
    """The (key, before, after) parts of an event; if the key changes, the delete of the old key comes first."""
    before, after = event.require_images()
    old = None if before is None else encode_row_key(before, identity.columns)
    new = None if after is None else encode_row_key(after, identity.columns)
    if old is not None and new is not None and old != new:
        yield old, before, None
        yield new, None, after
    else:
        yield new or old or "", before, after


def _build_keyed_change(key: str, entry: _Seen, identity: RowIdentity) -> NetChange:
    op: Literal["delete", "replace"] = "delete" if entry.after is None else "replace"
    before = entry.before if op == "delete" else None
    counts = (1, entry.first, entry.last, entry.mutations)
    return NetChange(key, identity.kind, op, before, entry.after, *counts)


def _count_rows(events: list[RowEvent], identity: RowIdentity) -> list[NetChange]:
    seen: dict[str, _Seen] = {}
    for event in events:
        for image, step in zip(event.require_images(), (-1, 1), strict=True):
            if image is None:
                continue
            entry = _visit(seen, encode_row_key(image, identity.columns), event)
            entry.after, entry.count = image, entry.count + step
    return [_build_row_change(key, entry) for key, entry in seen.items() if entry.count]


def _build_row_change(key: str, entry: _Seen) -> NetChange:
    counts = (abs(entry.count), entry.first, entry.last, entry.mutations)
    change = NetChange(key, "row", "insert", None, entry.after, *counts)
    return change if entry.count > 0 else replace(change, op="delete", before=entry.after, after=None)


def _visit(seen: dict[str, _Seen], key: str, event: RowEvent) -> _Seen:
    entry = seen.setdefault(key, _Seen(event.commit_ts, event.commit_ts))
    entry.last = event.commit_ts
    entry.mutations += 1
    return entry


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
