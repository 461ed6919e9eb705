"""What a DDL of one of several tables that share a target does in DM's pessimistic mode: it waits for the others.

Rule: each table goes through its DDL step by step. A step runs at the target once every table of the group has made one
that leaves the same shape; until then the rows behind it are held, table by table, and all else goes on. A table is
known by its number: one that comes under the name of another that is gone has made none of its steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from binlake.rows.codec.writers import filled_text
from binlake.rows.schema import TableDef
from binlake.window.joined import Conflict
from binlake.window.shardlocks import NEVER, OPEN, Hold, Locks, Name, PassedOver, as_table
from binlake.window.steprows import require_one_fill, rows_stay_readable, unreadable_column
from binlake.window.targets import RowLayout, TargetTables


@dataclass(frozen=True)
class Release:
    """Steps of one table that run at the target now, in order. `alert`: what an operator must know of them."""

    steps: tuple[Hold, ...]
    alert: str = ""

    @property
    def before(self) -> TableDef:
        """The definition (of the source) that the target has before them."""
        return self.steps[0].before

    @property
    def after(self) -> TableDef:
        """The definition that they leave."""
        return self.steps[-1].after

    @property
    def texts(self) -> tuple[str, ...]:
        """The statements."""
        return tuple(hold.sql for hold in self.steps)


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

    def waiting_targets(self) -> list[Name]:
        """The targets of which rows wait, by name."""
        return sorted({hold.target for hold in self._holds if hold.waits})

    def waiting_for(self, group: Sequence[TableDef], target: Name) -> list[Name]:
        """The tables of `group` that have not made the next step of the others."""
        held = {hold.after.id for hold in self._waiting(target)}
        passed = {one.table.id for one in self._passed if one.until == OPEN and one.target == target}
        return [_name(table) for table in group if table.id not in held | passed] if held else []

    def is_held(self, table: TableDef) -> bool:
        """Some of its DDL wait, or it is passed over."""
        return bool(self._steps_of(table.id)) or self._passed_over(table) is not None

    def follow(self, old: TableDef, new: TableDef, since: int) -> None:
        """`old` goes on as `new`, perhaps by another name or number, by a DDL that makes no step.

        The target goes on with what it has for the table.
        """
        for number, hold in list(enumerate(self._holds)):
            if hold.after.id != old.id:
                continue
            # Those released in this window too: which one was the first to wait is known by the number.
            moved = replace(hold, before=as_table(hold.before, new), after=as_table(hold.after, new))
            self._holds[number] = moved
            if _name(old) != _name(new) and hold.waits and hold.until == OPEN:
                self._holds[number] = replace(moved, until=since)
                self._holds.append(replace(moved, source=_name(new), since=since))
        passed = self._passed_over(old)
        if passed is not None and _name(old) != _name(new):
            self._pass_on(passed, as_table(passed.table, new), _name(new), since)
        elif passed is not None:
            self._passed[self._passed.index(passed)] = replace(passed, table=as_table(passed.table, new))
        steps, passed = self._steps_of(new.id), self._passed_over(new)
        shown = steps[0].before if steps else passed.table if passed is not None else new
        self._tables.show(as_table(shown, new))

    def catches_up(self, new: TableDef, since: int) -> bool | None:
        """Of a table that is passed over: whether it now has the definition that the target has; None for others.

        Raises Conflict where its rows would be other ones at the target.
        """
        passed = self._passed_over(new)
        if passed is None:
            return None
        if RowLayout(passed.table) != RowLayout(new):
            _require_readable([new], passed.table)
            return False
        self._passed[self._passed.index(passed)] = replace(passed, until=since)
        return True

    def step(self, hold: Hold) -> None:
        """A DDL that makes a step: rows behind it wait."""
        self._end_rows(hold.after.id, hold.since)
        self._holds.append(hold)
        self._tables.show(as_table(self._steps_of(hold.after.id)[0].before, hold.after))

    def end(self, table: TableDef, since: int) -> None:
        """The table is gone: the rows of its last step end here, and nobody waits for it."""
        self._end_rows(table.id, since)
        passed = self._passed_over(table)
        if passed is not None:
            self._passed[self._passed.index(passed)] = replace(passed, until=since)

    def _end_rows(self, table_id: int, since: int) -> None:
        for number, hold in enumerate(self._holds):
            if hold.after.id == table_id and hold.until == OPEN and hold.waits:
                self._holds[number] = replace(hold, until=since)

    def abandon(self, target: Name) -> list[Name]:
        """All tables of `target` are gone: what waits never comes. The tables whose rows waited."""
        waiting = self._waiting(target)
        self._holds = [replace(hold, released=NEVER) if hold in waiting else hold for hold in self._holds]
        return sorted({hold.source for hold in waiting})

    def steps_to(self, target: Name, shape: RowLayout) -> list[Hold]:
        """The steps of the table of `target` that has come to `shape` and waits; none where none has."""
        found = (self._steps_through(table_id, shape) for table_id in self._waiting_ids(target))
        return next((steps for steps in found if steps), [])

    def pass_over(
        self, group: Sequence[TableDef], without: Sequence[TableDef], target: Name, place: int
    ) -> Release | None:
        """Go on from `place` without some tables of `group`: they count as having what the others come to.

        What they hold themselves is released too. None where the others have not come to one shape. Raises Conflict
        where rows of a table that is left out would be other ones at the target.
        """
        before = list(self._passed)
        self._passed += [PassedOver(target, _name(table), place, table) for table in without]
        release = self.release(group, target, place)
        if release is None:
            self._passed = before
            return None
        left = [hold for table in without for hold in self._steps_of(table.id)]
        _require_readable((hold.after for hold in left), release.after)
        for hold in left:
            filled = _missing_columns(hold.after, release.after)
            self._holds[self._holds.index(hold)] = replace(hold, released=place, filled=filled)
        return release

    def release(self, group: Sequence[TableDef], target: Name, place: int) -> Release | None:
        """The steps to the furthest shape that all tables of `group` have reached; None when there is none.

        Once a place, since a mirror tells the DDL of a table by their commit_ts. Rows of a step whose values a later
        one would change stay apart from it: that one waits for the next window. Raises Conflict where the rows that are
        there would be filled with other values than at their tables.
        """
        steps: dict[int, list[Hold]] = {}
        if any(hold.target == target and hold.released == place for hold in self._holds):
            return None
        while (reached := self._reached_by_all(group)) is not None:
            # Of a table that is gone, what it did alike comes along.
            found = {table_id: self._steps_through(table_id, reached) for table_id in self._waiting_ids(target)}
            last = next(found[table.id][-1].after for table in group if found.get(table.id))
            shapes = {table_id: own[-1].after for table_id, own in found.items() if own}
            if not all(
                rows_stay_readable(own, shapes[table_id])
                if table_id in shapes
                else not unreadable_column(own[-1].after, last)
                for table_id, own in steps.items()
            ):
                break
            for table_id, own in found.items():
                steps.setdefault(table_id, []).extend(own)
            released = {id(hold) for own in found.values() for hold in own}
            self._holds = [replace(h, released=place) if id(h) in released else h for h in self._holds]
        live = [table.id for table in group if steps.get(table.id)]
        if not live:
            return None
        # The texts of one table: the one that came last.
        own = max((steps[table_id] for table_id in live), key=lambda some: some[-1].commit_ts)
        last = own[-1].after
        passed = {one.table.id for one in map(self._passed_over, group) if one is not None}
        _require_readable((self._tables.own(table) for table in group if table.id in passed), last)
        alert = require_one_fill([steps[table_id] for table_id in live if table_id not in passed])
        for number, hold in enumerate(self._holds):
            if hold.released == place and hold.target == target:
                self._holds[number] = replace(hold, filled=_missing_columns(hold.after, last))
        self._restore_definitions(group, last, place)
        return Release(tuple(_without_repeats(own)), alert)

    def _reached_by_all(self, group: Sequence[TableDef]) -> RowLayout | None:
        """The first shape that each of `group` has come to, or is passed over."""
        waiting = [self._steps_of(table.id) for table in group if self._passed_over(table) is None]
        if not waiting or not all(waiting):
            return None
        for hold in waiting[0]:
            layout = RowLayout(hold.after)
            if all(self._steps_through(own[0].after.id, layout) for own in waiting):
                return layout
        return None

    def _steps_through(self, table_id: int, reached: RowLayout) -> list[Hold]:
        """The steps of a table up to the first that leaves the shape `reached`; none where none does."""
        own = self._steps_of(table_id)
        last = next((hold for hold in own if RowLayout(hold.after) == reached), None)
        if last is None:
            return []
        # A step goes on under another name where its table was renamed meanwhile.
        ends = max(number for number, hold in enumerate(own) if hold.commit_ts == last.commit_ts) + 1
        return own[:ends] if rows_stay_readable(own[:ends], last.after) else []

    def _restore_definitions(self, group: Sequence[TableDef], reached: TableDef, place: int) -> None:
        """Show what the target has of each table behind a release that brought it to `reached`."""
        for table in group:
            steps, passed = self._steps_of(table.id), self._passed_over(table)
            if passed is not None:
                self._pass_on(passed, as_table(reached, table), passed.source, place)
                self._tables.show(as_table(reached, table))
            else:
                self._tables.show(as_table(steps[0].before if steps else self._last_of(table), table))

    def _pass_on(self, passed: PassedOver, table: TableDef, source: Name, since: int) -> None:
        """From `since` on the target has `table` for one that is passed over; before it what it had."""
        self._passed.remove(passed)
        if passed.since < since:
            self._passed.append(replace(passed, until=since))
        self._passed.append(replace(passed, source=source, since=since, table=table))

    def _last_of(self, table: TableDef) -> TableDef:
        return next(hold.after for hold in reversed(self._holds) if hold.after.id == table.id)

    def _waiting(self, target: Name) -> list[Hold]:
        return [hold for hold in self._holds if hold.waits and hold.target == target]

    def _waiting_ids(self, target: Name) -> list[int]:
        return list(dict.fromkeys(hold.after.id for hold in self._waiting(target)))

    def _steps_of(self, table_id: int) -> list[Hold]:
        found = [hold for hold in self._holds if hold.waits and hold.after.id == table_id]
        return sorted(found, key=lambda hold: hold.since)

    def _passed_over(self, table: TableDef) -> PassedOver | None:
        return next((one for one in self._passed if one.until == OPEN and one.table.id == table.id), None)


def _require_readable(tables: Iterable[TableDef], last: TableDef) -> None:
    """Raises Conflict where rows of one of `tables` would be other ones in a table of the definition `last`."""
    for table in tables:
        name = unreadable_column(table, last)
        if name:
            raise Conflict(
                f"column {name}: rows of {table.db}.{table.name} were written with another name or kind of it, and"
                " would be other ones at the target"
            )


def _without_repeats(steps: Sequence[Hold]) -> list[Hold]:
    """Each step once, also one that went on under another name."""
    return list({hold.commit_ts: hold for hold in steps}.values())


def _missing_columns(table: TableDef, last: TableDef) -> dict[str, str]:
    """What rows of `table` do not have of `last`, with which they are released, and what they have there."""
    lacking = [column for column in last.row_columns if table.column(column.name) is None]
    texts = {column.name: filled_text(column) for column in lacking}
    return {name: text for name, text in texts.items() if text is not None}


def _name(table: TableDef) -> Name:
    return table.db, table.name
