"""The difference of a table between two moments: which keys were added, removed or changed, with both images.

Between two moments without a DDL of the table the row changes in `mutation` are the whole answer, whatever the table's
size: they are joined as columns, and a row becomes a Python object only when it is shown, because a page shows fifty of
thousands. A DDL may change rows without a row change (TRUNCATE, DROP, a new column's value), so both states are
compared then.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from binlake.audit.audit import Audit, TableAsOf, sort_key
from binlake.changes.net import compute_net_changes, encode_row_key
from binlake.changes.net.net import complete_event, split_by_key
from binlake.common.arrowcolumns import number_values
from binlake.common.lakecolumns import History, Mutation
from binlake.ddl.definitions import derive_key_defaults
from binlake.errors import ConfigError, LostRange, OutOfTime, SchemaError
from binlake.lake.ddls import read_landed_ddls
from binlake.lake.mutations import Row, RowVersion, build_row_versions, match_table, read_change_table
from binlake.lake.seek import TimeBudget, read_at_most
from binlake.rows.codec import format_key_text
from binlake.rows.schema import TableDef

Indexes = npt.NDArray[np.int64]
_ORDER = (History.COMMIT_TS, History.START_TS, Mutation.SEQ)
_IMAGES = {"insert": (False, True), "update": (True, True), "delete": (True, False)}
Kind = Literal["added", "removed", "changed"]
KINDS: tuple[Kind, ...] = ("added", "removed", "changed")


@dataclass(frozen=True)
class RowDifference:
    """One key (JSON array) that is not the same at both moments. `copies`: of a row of a table without a key."""

    key: str
    kind: Kind
    before: Row | None
    after: Row | None
    copies: int = 1


class KeyDifferences(Sequence[RowDifference]):
    """The differences that columns tell, sorted by key; a row is made when it is asked for."""

    def __init__(self, net: NetColumns, places: Sequence[int] | None = None) -> None:
        self._net = net
        self._places = _sort_keys(net.keys) if places is None else places

    @property
    def kinds(self) -> list[Kind]:
        """The kind of each difference."""
        return [self._find_kind(place) for place in self._places]

    def select(self, kind: str) -> KeyDifferences:
        """Those of one kind."""
        return KeyDifferences(self._net, [place for place in self._places if self._find_kind(place) == kind])

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, where: int) -> RowDifference: ...
    @overload
    def __getitem__(self, where: slice) -> Sequence[RowDifference]: ...
    def __getitem__(self, where: int | slice) -> RowDifference | Sequence[RowDifference]:
        if isinstance(where, slice):
            return KeyDifferences(self._net, self._places[where])
        return self._build(self._places[where])

    def _build(self, place: int) -> RowDifference:
        net = self._net
        key = format_key_text([values[place].as_py() for values in net.keys])
        before, after = (
            None if row < 0 else dict(net.changes.column(name)[int(row)].as_py())
            for name, row in ((Mutation.BEFORE, net.old[place]), (Mutation.AFTER, net.new[place]))
        )
        return RowDifference(key, self._find_kind(place), before, after)

    def _find_kind(self, place: int) -> Kind:
        return "added" if self._net.old[place] < 0 else "removed" if self._net.new[place] < 0 else "changed"


def _sort_keys(keys: Sequence[pa.Array]) -> list[int]:
    """The places of `keys`, column by column, in the order of `sort_key`."""
    if len(keys) == 1 and pc.all(pc.match_substring_regex(keys[0], "^-?[0-9]{1,18}$")).as_py():
        numbers: list[int] = pc.sort_indices(keys[0].cast(pa.int64())).to_pylist()
        return numbers
    rows = list(zip(*(values.to_pylist() for values in keys), strict=True))
    return sorted(range(len(rows)), key=lambda place: sort_key(rows[place]))


@dataclass(frozen=True)
class TableDifference:
    """The differences between `lo` and `hi` (commit_ts), sorted by key; `columns`: those of both states, in order.

    `ddls`: commit_ts of the table's DDL in between; `inexact`: why a state may differ from the source's, empty = exact.
    """

    lo: int
    hi: int
    columns: tuple[str, ...]
    rows: Sequence[RowDifference]
    ddls: tuple[int, ...]
    inexact: str = ""

    def count(self) -> dict[Kind, int]:
        """How many keys of each kind."""
        found = Counter(self.rows.kinds if isinstance(self.rows, KeyDifferences) else (row.kind for row in self.rows))
        return {kind: found[kind] for kind in KINDS}

    def select(self, kind: str) -> Sequence[RowDifference]:
        """The differences of one kind; all for an empty text."""
        if not kind:
            return self.rows
        if isinstance(self.rows, KeyDifferences):
            return self.rows.select(kind)
        return tuple(row for row in self.rows if row.kind == kind)


@dataclass(frozen=True)
class DiffLimits:
    """What a page allows itself: row changes read, rows of a state, time."""

    changes: int
    rows: int
    budget: TimeBudget


def diff_table(
    audit: Audit, name: tuple[str, str], lo: int, hi: int, limits: DiffLimits | None = None
) -> TableDifference:
    """The differences of the table `name` (db, table) from `lo` to `hi`. `limits`: None = none.

    Raises as Audit.read_table_as_of, ConfigError unless lo < hi, LostRange beyond the limits, OutOfTime.
    """
    if lo >= hi:
        raise ConfigError("the first moment is not before the second", where={"from": lo, "to": hi})
    audit.clip_range(-1, lo)
    audit.clip_range(-1, hi)
    ddls = read_landed_ddls(audit.paths, lo, hi, name)
    if ddls:
        return _diff_states(audit, name, lo, hi, tuple(ddl.commit_ts for ddl in ddls), limits)
    definition = audit.read_definition_at(*name, hi)
    audit.require_no_held_rows((definition.db, definition.name), lo, hi)
    changes = _read_changes(audit, definition, lo, hi, limits)
    columns = tuple(column.name for column in definition.row_columns)
    return TableDifference(lo, hi, columns, _diff_changes(definition, changes), ())


def _read_changes(audit: Audit, definition: TableDef, lo: int, hi: int, limits: DiffLimits | None) -> pa.Table:
    where = match_table(definition.db, definition.name)
    if limits is None:
        return read_change_table(audit.paths, lo, hi, where)
    found, late = read_at_most(audit.paths, lo, hi, where, limits.changes, limits.budget)
    if found is not None:
        return found
    place = {"table": f"{definition.db}.{definition.name}", "from": lo, "to": hi}
    hint = "choose moments that are nearer to each other, or use `binlake audit diff`, which has no limit"
    if late:
        raise OutOfTime("the row changes between these moments took too long to read", where=place, hint=hint)
    raise LostRange(f"more than {limits.changes:,} row changes lie between these moments", where=place, hint=hint)


def _diff_changes(definition: TableDef, changes: pa.Table) -> Sequence[RowDifference]:
    identity = definition.find_identity()
    net = None if identity.kind == "row" else compute_net_columns(changes, identity.columns)
    if net is None:
        return _sort(_diff_events(definition, build_row_versions([changes])))
    return KeyDifferences(net)


def _diff_events(definition: TableDef, changes: Iterable[RowVersion]) -> Iterator[RowDifference]:
    identity, filled = definition.find_identity(), derive_key_defaults(definition)
    events = [change.to_event() for change in changes]
    if identity.kind == "row":
        for net in compute_net_changes(events, identity, filled):
            kind: Kind = "added" if net.op == "insert" else "removed"
            yield RowDifference(net.key, kind, _copy(net.before), _copy(net.after), net.copies)
        return
    first: dict[str, Row | None] = {}
    last: dict[str, Row | None] = {}
    for event in sorted((complete_event(one, filled) for one in events), key=lambda one: one.position):
        for key, before, after in split_by_key(event, identity):
            first.setdefault(key, _copy(before))
            last[key] = _copy(after)
    yield from _compare(first, last)


def _diff_states(
    audit: Audit, name: tuple[str, str], lo: int, hi: int, ddls: tuple[int, ...], limits: DiffLimits | None
) -> TableDifference:
    before, after = (_read_state(audit, name, ts, limits) for ts in (lo, hi))
    if before is None and after is None:
        raise SchemaError("the table existed at neither moment", where={"table": ".".join(name), "from": lo, "to": hi})
    columns = tuple(dict.fromkeys([*(before.columns if before else ()), *(after.columns if after else ())]))
    definition = audit.read_definition_at(*name, hi if after is not None else lo)
    inexact = next((one.inexact for one in (before, after) if one is not None and one.inexact), "")
    rows = _sort(_compare_states(definition, before, after))
    return TableDifference(lo, hi, columns, rows, ddls, inexact)


def _read_state(audit: Audit, name: tuple[str, str], ts: int, limits: DiffLimits | None) -> TableAsOf | None:
    """The table at `ts`; None if it did not exist. Raises LostRange if it has more rows than a page compares."""
    if (definition := audit.read_tables_at(ts).find(*name)) is None or definition.kind != "table":
        return None
    base = audit.find_base_version(definition.db, definition.name, ts)
    if limits is not None and base.delta_version >= 0 and audit.read_rows_of(base).count_rows() > limits.rows:
        raise LostRange(
            f"a DDL changed this table between these moments, and it has more than {limits.rows:,} rows to compare",
            where={"table": ".".join(name), "ts": ts},
            hint="choose moments on one side of the DDL, or use `binlake audit diff`, which has no limit",
        )
    return audit.read_table_as_of(definition.db, definition.name, ts)


def _compare_states(definition: TableDef, before: TableAsOf | None, after: TableAsOf | None) -> Iterator[RowDifference]:
    """By the key columns of `definition`; by whole rows if a state lacks one of them."""
    columns = definition.find_identity().columns
    states = [() if state is None else state.rows for state in (before, after)]
    known = all(set(columns) <= set(state.columns) for state in (before, after) if state is not None)
    if definition.find_identity().kind == "row" or not known:
        yield from _compare_copies(*states)
        return
    yield from _compare(*({encode_row_key(row, columns): row for row in rows} for rows in states))


def _compare_copies(before: Sequence[Row], after: Sequence[Row]) -> Iterator[RowDifference]:
    old, new = (Counter(json.dumps(_drop_nulls(row)) for row in rows) for rows in (before, after))
    for text in old | new:
        row, more = json.loads(text), new[text] - old[text]
        if more:
            kind: Kind = "added" if more > 0 else "removed"
            images = {"before": None, "after": row} if more > 0 else {"before": row, "after": None}
            yield RowDifference(json.dumps(list(row.values())), kind, copies=abs(more), **images)


def _compare(before: Mapping[str, Row | None], after: Mapping[str, Row | None]) -> Iterator[RowDifference]:
    for key in dict.fromkeys([*before, *after]):
        old, new = before.get(key), after.get(key)
        if old == new or (old is not None and new is not None and _drop_nulls(old) == _drop_nulls(new)):
            continue
        yield RowDifference(key, "added" if old is None else "removed" if new is None else "changed", old, new)


def _drop_nulls(row: Row) -> Row:
    """A column that a state does not have counts as NULL there: adding one without a value changes no row."""
    return {name: value for name, value in row.items() if value is not None}


def _copy(image: Mapping[str, str | None] | None) -> Row | None:
    return None if image is None else dict(image)


def _sort(rows: Iterable[RowDifference]) -> tuple[RowDifference, ...]:
    return tuple(sorted(rows, key=lambda row: sort_key(json.loads(row.key))))


@dataclass(frozen=True)
class NetColumns:
    """For each key that differs: the row of `changes` with its image before (`old`) and after (`new`); -1 = no image.

    `keys`: the values of the key's columns.
    """

    changes: pa.Table
    keys: tuple[pa.Array, ...]
    old: Indexes
    new: Indexes


def compute_net_columns(changes: pa.Table, key_columns: Sequence[str]) -> NetColumns | None:
    """The keys whose first image before and last image after differ; `changes`: rows of `mutation` of one table.

    A column that an image lacks counts as NULL. None if an image lacks a value of the key: rows that were written
    before ADD COLUMN. Raises SchemaError for a change with the wrong images.
    """
    changes = changes.sort_by([(name, "ascending") for name in _ORDER]).combine_chunks()
    sides = [_combine(changes.column(name)) for name in (Mutation.BEFORE, Mutation.AFTER)]
    there = [np.asarray(side.is_valid()) for side in sides]
    _require_images(changes, there)
    values = [[pc.map_lookup(side, name, "first") for name in key_columns] for side in sides]
    if any((np.asarray(one.is_null()) & has).any() for side, has in zip(values, there, strict=True) for one in side):
        return None
    columns = [pa.concat_arrays([old, new]) for old, new in zip(*values, strict=True)]
    codes = _number_keys(columns)
    old_codes, new_codes = codes[: len(changes)], codes[len(changes) :]
    parts = _split(old_codes, new_codes, there[0], there[1])
    old, new = _find_ends(*parts)
    differs = _differ(sides, old, new)
    old, new = old[differs], new[differs]
    # Where the values of the key are: in the image before, or else in the one after.
    places = pa.array(np.where(old >= 0, old, new + len(changes)))
    return NetColumns(changes, tuple(column.take(places) for column in columns), old, new)


def _combine(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)


def _require_images(changes: pa.Table, there: Sequence[npt.NDArray[np.bool_]]) -> None:
    op = changes.column(Mutation.OP)
    for name, images in _IMAGES.items():
        wrong = np.asarray(pc.equal(op, name)) & ((there[0] != images[0]) | (there[1] != images[1]))
        if wrong.any():
            commit_ts = changes.column(History.COMMIT_TS)[int(np.argmax(wrong))].as_py()
            raise SchemaError(f"a row change of kind {name} has the wrong images", where={"commit_ts": commit_ts})


def _number_keys(columns: Sequence[pa.Array]) -> Indexes:
    """The same number for rows with the same values; that of a row without the image means nothing."""
    named = {str(place): pc.fill_null(column, "") for place, column in enumerate(columns)}
    return number_values(pa.table(named), list(named))[0]


def _split(
    old_codes: Indexes, new_codes: Indexes, has_old: npt.NDArray[np.bool_], has_new: npt.NDArray[np.bool_]
) -> tuple[Indexes, Indexes, Indexes]:
    """(key, row of the image before, of the one after) in order; a change that moves a row is two."""
    rows = np.arange(len(old_codes))
    old, new = np.where(has_old, rows, -1), np.where(has_new, rows, -1)
    moves = has_old & has_new & (old_codes != new_codes)
    none = np.full(int(moves.sum()), -1)
    keys = np.concatenate([np.where(has_old, old_codes, new_codes), new_codes[moves]])
    olds, news = np.concatenate([old, none]), np.concatenate([np.where(moves, -1, new), new[moves]])
    order = np.argsort(np.concatenate([2 * rows, 2 * rows[moves] + 1]), kind="stable")
    return keys[order], olds[order], news[order]


def _find_ends(keys: Indexes, olds: Indexes, news: Indexes) -> tuple[Indexes, Indexes]:
    """For each key the image before its first change and the one after its last; keys that were at neither are left
    out."""
    first = np.unique(keys, return_index=True)[1]
    last = len(keys) - 1 - np.unique(keys[::-1], return_index=True)[1]
    old, new = olds[first], news[last]
    known = (old >= 0) | (new >= 0)
    return old[known], new[known]


def _differ(sides: Sequence[pa.Array], old: Indexes, new: Indexes) -> npt.NDArray[np.bool_]:
    differs = np.ones(len(old), bool)
    both = np.flatnonzero((old >= 0) & (new >= 0))
    images = [side.take(pa.array(rows[both])) for side, rows in zip(sides, (old, new), strict=True)]
    lengths = [np.asarray(pc.list_value_length(_as_list(image))) for image in images]
    names, values = ([_flatten(image)[part] for image in images] for part in (0, 1))
    if (lengths[0] == lengths[1]).all() and names[0].equals(names[1]):
        apart = np.asarray(pc.fill_null(pc.not_equal(*values), False))
        apart |= np.asarray(values[0].is_null()) != np.asarray(values[1].is_null())
        rows = np.repeat(np.arange(len(both)), lengths[0])
        differs[both] = np.bincount(rows[apart], minlength=len(both)) > 0
    else:
        # Written with columns in another order, or before and after ADD COLUMN.
        differs[both] = [_read_image(one) != _read_image(other) for one, other in zip(*images, strict=True)]
    return differs


def _as_list(image: pa.MapArray) -> pa.Array:
    pairs = pa.struct([("key", image.type.key_type), ("value", image.type.item_type)])
    return image.cast(pa.list_(pairs))


def _flatten(image: pa.MapArray) -> tuple[pa.Array, pa.Array]:
    """The names and values of all rows."""
    pairs = _as_list(image).flatten()
    return pairs.field(0), pairs.field(1)


def _read_image(image: pa.Scalar) -> dict[str, str]:
    return {name: value for name, value in image.as_py() if value is not None}
