"""What a DDL of one of several tables that share a target does in DM's pessimistic mode: it waits for the others.

Rule: each table goes through its DDL step by step. A step runs at the target once every table of the group has made one
that leaves the same shape; until then the rows behind it are held, table by table, and all else goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from binlake.rows.codec.writers import filled_text
from binlake.rows.schema import TableDef
from binlake.rows.schema.names import fold_name, fold_pair
from binlake.window.shardlocks import OPEN, Hold, Locks, Name, PassedOver, as_table
from binlake.window.targets import RowLayout, TargetTables


@dataclass(frozen=True)
class Release:
    """Steps that run at the target now, in order: the definitions (of the source) around them, and their texts."""

    before: TableDef
    after: TableDef
    texts: tuple[str, ...]


class LockKeeper:
    """Keeps the holds of a window while its DDL are judged in commit order; `tables` show what the target has."""

    def __init__(self, tables: TargetTables, locks: Locks) -> None:
        self._tables = tables
        self._holds = list(locks.holds)
        self._passed = list(locks.passed)

    @property
    def locks(self) -> Locks:
        """All that was held in the window up to here."""
        return Locks(tuple(self._holds), tuple(self._passed))

    def waiting_for(self, group: Sequence[TableDef], target: Name) -> list[Name]:
        """The tables of `group` that have not made the next step of the others."""
        held = {fold_pair(hold.source) for hold in self._waiting(target)}
        passed = {fold_pair(one.source) for one in self._passed if one.until == OPEN and one.target == target}
        return [_name(table) for table in group if _folded(table) not in held | passed] if held else []

    def is_held(self, table: TableDef) -> bool:
        """Some of its DDL wait, or it is passed over."""
        return bool(self._of(table)) or self._passed_over(table) is not None

    def follow(self, old: TableDef, new: TableDef) -> None:
        """A DDL that makes no step: the target goes on with what it has for the table."""
        passed, steps = self._passed_over(old), self._of(old)
        shown = steps[0].before if steps else passed.table if passed is not None else new
        self._tables.show(as_table(shown, new))

    def catches_up(self, new: TableDef, since: int) -> bool | None:
        """Of a table that is passed over: whether it now has the definition that the target has; None for others."""
        passed = self._passed_over(new)
        if passed is None:
            return None
        if RowLayout(passed.table) != RowLayout(new):
            return False
        self._passed[self._passed.index(passed)] = replace(passed, until=since)
        return True

    def step(self, hold: Hold) -> None:
        """A DDL that makes a step: rows behind it wait."""
        self.end(hold.source, hold.since)
        self._holds.append(hold)
        self._tables.show(as_table(self._of(hold.after)[0].before, hold.after))

    def end(self, source: Name, since: int) -> None:
        """The rows of the last step of `source` end here: a further step, or the table's end."""
        for number, hold in enumerate(self._holds):
            if fold_pair(hold.source) == fold_pair(source) and hold.until == OPEN and hold.waits:
                self._holds[number] = replace(hold, until=since)

    def steps_to(self, target: Name, shape: RowLayout) -> list[Hold]:
        """The steps of the table of `target` that has come to `shape` and waits; none where none has."""
        found = (self._through(fold_pair(hold.source), shape) for hold in self._waiting(target))
        return next((steps for steps in found if steps), [])

    def pass_over(
        self, group: Sequence[TableDef], without: Sequence[TableDef], target: Name, place: int
    ) -> Release | None:
        """Go on from `place` without some tables of `group`: they count as having what the others come to.

        What they hold themselves is released too. None where the others have not come to one shape.
        """
        before = list(self._passed)
        self._passed += [PassedOver(target, _name(table), place, table) for table in without]
        release = self.release(group, target, place)
        if release is None:
            self._passed = before
            return None
        left = [hold for table in without for hold in self._of(table)]
        for hold in left:
            filled = _lacking(hold.after, release.after)
            self._holds[self._holds.index(hold)] = replace(hold, released=place, filled=filled)
        return release

    def release(self, group: Sequence[TableDef], target: Name, place: int) -> Release | None:
        """The steps to the furthest shape that all tables of `group` have reached; None when there is none."""
        steps: dict[Name, list[Hold]] = {}
        while (reached := self._reached_by_all(group)) is not None:
            # Of a table that is gone, what it did alike comes along.
            for name in {fold_pair(hold.source) for hold in self._waiting(target)}:
                steps.setdefault(name, []).extend(self._through(name, reached))
            released = {id(hold) for own in steps.values() for hold in own}
            self._holds = [replace(h, released=place) if id(h) in released and h.waits else h for h in self._holds]
        live = [name for name in map(_folded, group) if steps.get(name)]
        if not live:
            return None
        # The texts of one table: the one that came last.
        own = max((steps[name] for name in live), key=lambda some: some[-1].commit_ts)
        last = own[-1].after
        for number, hold in enumerate(self._holds):
            if hold.released == place and hold.target == target:
                self._holds[number] = replace(hold, filled=_lacking(hold.after, last))
        self._show_again(group, last)
        return Release(own[0].before, last, tuple(hold.sql for hold in own))

    def _reached_by_all(self, group: Sequence[TableDef]) -> RowLayout | None:
        """The first shape that each of `group` has come to, or is passed over."""
        waiting = [self._of(table) for table in group if self._passed_over(table) is None]
        if not waiting or not all(waiting):
            return None
        for hold in waiting[0]:
            layout = RowLayout(hold.after)
            if all(self._through(_folded(own[0].after), layout) for own in waiting):
                return layout
        return None

    def _through(self, name: Name, reached: RowLayout) -> list[Hold]:
        """The steps of a table up to the first that leaves the shape `reached`; none where none does."""
        own = self._named(name)
        ends = next((number for number, hold in enumerate(own) if RowLayout(hold.after) == reached), None)
        if ends is None or any(_renames(hold.after, own[ends].after) for hold in own[:ends]):
            return []
        return own[: ends + 1]

    def _show_again(self, group: Sequence[TableDef], reached: TableDef) -> None:
        """Show what the target has of each table behind a release that brought it to `reached`."""
        for table in group:
            steps, passed = self._of(table), self._passed_over(table)
            if passed is not None:
                moved = replace(passed, table=as_table(reached, table))
                self._passed[self._passed.index(passed)] = moved
                self._tables.show(moved.table)
            else:
                self._tables.show(as_table(steps[0].before if steps else self._last_of(table), table))

    def _last_of(self, table: TableDef) -> TableDef:
        name = _folded(table)
        return next(hold.after for hold in reversed(self._holds) if fold_pair(hold.source) == name)

    def _waiting(self, target: Name) -> list[Hold]:
        return [hold for hold in self._holds if hold.waits and hold.target == target]

    def _of(self, table: TableDef) -> list[Hold]:
        return self._named(_folded(table))

    def _named(self, name: Name) -> list[Hold]:
        found = [hold for hold in self._holds if hold.waits and fold_pair(hold.source) == name]
        return sorted(found, key=lambda hold: hold.since)

    def _passed_over(self, table: TableDef) -> PassedOver | None:
        name = _folded(table)
        return next((one for one in self._passed if one.until == OPEN and fold_pair(one.source) == name), None)


def _lacking(table: TableDef, last: TableDef) -> dict[str, str]:
    """What rows of `table` do not have of `last`, with which they are released, and what they have there."""
    lacking = [column for column in last.row_columns if table.column(column.name) is None]
    texts = {column.name: filled_text(column) for column in lacking}
    return {name: text for name, text in texts.items() if text is not None}


def _renames(table: TableDef, last: TableDef) -> bool:
    """Rows of `table` have a value whose column is called otherwise in `last`."""
    names = {column.id: fold_name(column.name) for column in last.columns}
    return any(names.get(column.id, fold_name(column.name)) != fold_name(column.name) for column in table.columns)


def _name(table: TableDef) -> Name:
    return table.db, table.name


def _folded(table: TableDef) -> Name:
    return fold_pair(_name(table))
