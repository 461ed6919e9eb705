"""The effect of one table's DDL on a shared target in DM's pessimistic mode: it waits for the other tables.

Rule: each table makes its DDL step by step. A step runs at the target once every table of the group has made a step
with the same resulting shape. Until then the rows after it are held, table by table, and everything else continues. A
table is identified by its id: a new table with the name of a removed one has made none of its steps.

Held rows are texts in the definition with which they were written. They may follow a later DDL that runs with theirs
only if its definition reads the same text as the same value, and if all tables filled an added column with the same
value.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from binlake.ddl.joined import Conflict, fill_with_defaults, list_lacking_columns
from binlake.ddl.optimistic import renames_column, require_same_fill
from binlake.ddl.shardlocks import NEVER, OPEN, Hold, Locks, Name, PassedOver, as_table
from binlake.ddl.targets import RowLayout, TargetTables
from binlake.rows.codec.encode import derive_filled_text
from binlake.rows.schema import ColumnInfo, TableDef
from binlake.rows.schema import mysqltypes as t
from binlake.rows.schema.forms import fold_name


def keeps_rows_readable(steps: Sequence[Hold], last: TableDef) -> bool:
    """Whether the later definition `last` reads rows of a table's `steps` as the same values: no renamed column."""
    names = {column.id: fold_name(column.name) for column in last.columns}
    for hold in steps:
        # A step that is part of a table's first definition has no rows.
        if hold.until != hold.since and (
            find_unreadable_column(hold.after, last)
            or any(names.get(c.id, fold_name(c.name)) != fold_name(c.name) for c in hold.after.columns)
        ):
            return False
    return True


def find_unreadable_column(table: TableDef, last: TableDef) -> str:
    """A column of `table` whose text `last`, perhaps of another table, would read as another value; "" if none."""
    for column in table.row_columns:
        later = last.find_column(column.name)
        if later is not None and not later.is_generated and _classify_text(column) != _classify_text(later):
            return column.name
    return ""


def _classify_text(column: ColumnInfo) -> str:
    """The kind of a column. Columns of the same kind read a text as the same value or refuse it."""
    if column.is_binary:
        return "hex"
    # A TIMESTAMP's text is in UTC. The text of a FLOAT is another value as a DOUBLE.
    return {t.TIMESTAMP: "UTC", t.FLOAT: "float", t.DOUBLE: "double"}.get(column.tp, "")


def require_one_fill(tables: Sequence[Sequence[Hold]]) -> str:
    """Require that existing rows of all `tables` got the same values in columns that the steps add.

    Returns an alert if the value is the time of the DDL, else an empty text. Raises Conflict.
    """
    fills: dict[str, tuple[str | None, Hold]] = {}
    alert = ""
    for steps in tables:
        for name, (column, hold) in _collect_added_columns(steps).items():
            text, first = fills.setdefault(name, (derive_filled_text(column), hold))
            if text == derive_filled_text(column):
                continue
            both = f"{_format_source_name(first)} and {_format_source_name(hold)}"
            if not column.defaults_to_time:
                raise Conflict(
                    f"column {column.name}: rows of {_format_source_name(first)} were filled with {text!r}, rows of"
                    f" {_format_source_name(hold)} with {derive_filled_text(column)!r}; the target would use one value"
                    " for all"
                )
            alert = f"column {column.name}: rows of {both} have the time of their own DDL, but one time at the target"
    return alert


def _collect_added_columns(steps: Sequence[Hold]) -> dict[str, tuple[ColumnInfo, Hold]]:
    # A table that was created with a step's result has no rows that the step filled.
    real = [hold for hold in steps if not hold.created]
    return {fold_name(column.name): (column, hold) for hold in real for column in _find_added_columns(hold)}


def _find_added_columns(hold: Hold) -> Iterator[ColumnInfo]:
    former = {column.id for column in hold.before.columns}
    for column in hold.after.row_columns:
        renamed = column.id in former or renames_column(hold.sql)
        if not column.is_generated and not renamed and hold.before.find_column(column.name) is None:
            yield column


def _format_source_name(hold: Hold) -> str:
    return ".".join(hold.source)


@dataclass(frozen=True)
class Release:
    """Steps of one table that run at the target now, in order. `alert`: a message to the operator about them."""

    steps: tuple[Hold, ...]
    alert: str = ""

    @property
    def before(self) -> TableDef:
        """The definition (of the source) that the target has before the steps."""
        return self.steps[0].before

    @property
    def after(self) -> TableDef:
        """The definition after the steps."""
        return self.steps[-1].after

    @property
    def texts(self) -> tuple[str, ...]:
        """The statements of the steps."""
        return tuple(hold.sql for hold in self.steps)


class LockKeeper:
    """Tracks the holds of a window while its DDL is judged in commit order. `tables`: the target's tables."""

    def __init__(self, tables: TargetTables, locks: Locks) -> None:
        self._tables = tables
        self._holds = list(locks.holds)
        self._passed = list(locks.passed)

    @property
    def locks(self) -> Locks:
        """All holds of the window so far."""
        return Locks(tuple(self._holds), tuple(self._passed))

    def list_waiting_targets(self) -> list[Name]:
        """The targets with waiting rows, by name."""
        return sorted({hold.target for hold in self._holds if hold.waits})

    def find_awaited_tables(self, group: Sequence[TableDef], target: Name) -> list[Name]:
        """The tables of `group` that have not made the next step yet; empty if no table waits."""
        waiting = {hold.after.id for hold in self._select_waiting_holds(target)}
        passed = {entry.table.id for entry in self._passed if entry.until == OPEN and entry.target == target}
        return [_build_name(table) for table in group if table.id not in waiting | passed] if waiting else []

    def is_held(self, table: TableDef) -> bool:
        """True when a DDL of the table waits, or the table is passed over."""
        return bool(self._list_steps(table.id)) or self._find_passed_over(table) is not None

    def follow(self, old: TableDef, new: TableDef, since: int) -> None:
        """Follow a DDL that is not a step: `old` becomes `new`, perhaps with another name or id.

        The target keeps its definition for the table.
        """
        for number, hold in list(enumerate(self._holds)):
            if hold.after.id != old.id:
                continue
            # Also update holds released in this window: the id shows which one waited first.
            moved = replace(hold, before=as_table(hold.before, new), after=as_table(hold.after, new))
            self._holds[number] = moved
            if _build_name(old) != _build_name(new) and hold.waits and hold.until == OPEN:
                self._holds[number] = replace(moved, until=since)
                self._holds.append(replace(moved, source=_build_name(new), since=since))
        passed = self._find_passed_over(old)
        if passed is not None and _build_name(old) != _build_name(new):
            self._update_passed_over(passed, as_table(passed.table, new), _build_name(new), since)
        elif passed is not None:
            self._passed[self._passed.index(passed)] = replace(passed, table=as_table(passed.table, new))
        steps, passed = self._list_steps(new.id), self._find_passed_over(new)
        shown = steps[0].before if steps else passed.table if passed is not None else new
        self._tables.show(as_table(shown, new))

    def has_caught_up(self, old: TableDef, new: TableDef, since: int) -> bool | None:
        """Whether a passed-over table, now `new`, has the target's definition; None for other tables.

        Raises Conflict if its rows would differ at the target.
        """
        passed = self._find_passed_over(new)
        if passed is None:
            return None
        if passed.created:
            # Nobody decided to continue without it, so nothing of it may be lost.
            require_same_fill(old, new, passed.table)
            own = list_lacking_columns(passed.table, new)
            if own:
                raise Conflict(
                    f"column {own[0]}: {new.db}.{new.name} adds it before it has the DDL of the other tables, so the"
                    " target does not have it"
                )
        if RowLayout(passed.table) != RowLayout(new):
            _require_readable([new], passed.table)
            return False
        self._passed[self._passed.index(passed)] = replace(passed, until=since)
        return True

    def add_step(self, hold: Hold) -> None:
        """Add a DDL that is a step: later rows of the table wait."""
        self._end_rows(hold.after.id, hold.since)
        self._holds.append(hold)
        self._tables.show(as_table(self._list_steps(hold.after.id)[0].before, hold.after))

    def add_behind(self, target: Name, new: TableDef, known: TableDef, since: int) -> None:
        """Add a created table `new` that lacks columns of the target's definition `known`: its rows are filled.

        It is not awaited until it has these columns. Raises Conflict if its rows would differ at the target.
        """
        _require_readable([new], known)
        table = fill_with_defaults(as_table(known, new), list_lacking_columns(new, known))
        self._passed.append(PassedOver(target, _build_name(new), since, table, created=True))
        self._tables.show(table)

    def follow_removal(self, table: TableDef, since: int) -> None:
        """Follow the removal of `table`: the rows of its last step end here, and no other table waits for it."""
        self._end_rows(table.id, since)
        passed = self._find_passed_over(table)
        if passed is not None:
            self._passed[self._passed.index(passed)] = replace(passed, until=since)

    def _end_rows(self, table_id: int, since: int) -> None:
        for number, hold in enumerate(self._holds):
            if hold.after.id == table_id and hold.until == OPEN and hold.waits:
                self._holds[number] = replace(hold, until=since)

    def abandon(self, target: Name) -> list[Name]:
        """Follow the removal of all tables of `target`: waiting rows are never released. Returns their tables."""
        waiting = self._select_waiting_holds(target)
        self._holds = [replace(hold, released=NEVER) if hold in waiting else hold for hold in self._holds]
        return sorted({hold.source for hold in waiting})

    def find_steps_to(self, target: Name, shape: RowLayout) -> list[Hold]:
        """The steps of a waiting table of `target` that has reached `shape`; empty if no table has."""
        candidates = (self._find_steps_up_to(table_id, shape) for table_id in self._list_waiting_ids(target))
        return next((steps for steps in candidates if steps), [])

    def pass_over(
        self, group: Sequence[TableDef], without: Sequence[TableDef], target: Name, start: int
    ) -> Release | None:
        """Continue from `start` without some tables of `group`, as if they had the shape that the others reached.

        Their holds are released too. Returns None if the others have not reached a common shape. Raises Conflict if
        rows of a table that is left out would differ at the target.
        """
        before = list(self._passed)
        self._passed += [PassedOver(target, _build_name(table), start, table) for table in without]
        release = self.release(group, target, start)
        if release is None:
            self._passed = before
            return None
        remaining = [hold for table in without for hold in self._list_steps(table.id)]
        _require_readable((hold.after for hold in remaining), release.after)
        for hold in remaining:
            filled = _find_missing_columns(hold.after, release.after)
            self._holds[self._holds.index(hold)] = replace(hold, released=start, filled=filled)
        return release

    def release(self, group: Sequence[TableDef], target: Name, start: int) -> Release | None:
        """The steps to the furthest shape that all tables of `group` have reached; None if they reached none.

        At most one release per commit_ts, since a mirror identifies a table's DDL by it. A step that would change
        values of an earlier step's rows waits for the next window. Raises Conflict if a new column would get other
        values in rows at the target than in the source tables.
        """
        steps: dict[int, list[Hold]] = {}
        if any(hold.target == target and hold.released == start for hold in self._holds):
            return None
        while (reached := self._find_common_shape(group)) is not None:
            # Steps of removed tables up to this shape are released too.
            reached_steps = {
                table_id: self._find_steps_up_to(table_id, reached) for table_id in self._list_waiting_ids(target)
            }
            last = next(reached_steps[table.id][-1].after for table in group if reached_steps.get(table.id))
            shapes = {table_id: table_steps[-1].after for table_id, table_steps in reached_steps.items() if table_steps}
            if not all(
                keeps_rows_readable(table_steps, shapes[table_id])
                if table_id in shapes
                else not find_unreadable_column(table_steps[-1].after, last)
                for table_id, table_steps in steps.items()
            ):
                break
            for table_id, table_steps in reached_steps.items():
                steps.setdefault(table_id, []).extend(table_steps)
            released = {id(hold) for table_steps in reached_steps.values() for hold in table_steps}
            self._holds = [replace(h, released=start) if id(h) in released else h for h in self._holds]
        live = [table.id for table in group if steps.get(table.id)]
        if not live:
            return None
        # Run the statements of one table: of the table that made the last step.
        table_steps = max((steps[table_id] for table_id in live), key=lambda some: some[-1].commit_ts)
        last = table_steps[-1].after
        passed = {entry.table.id for entry in map(self._find_passed_over, group) if entry is not None}
        _require_readable((self._tables.find_source_definition(table) for table in group if table.id in passed), last)
        alert = require_one_fill([steps[table_id] for table_id in live if table_id not in passed])
        for number, hold in enumerate(self._holds):
            if hold.released == start and hold.target == target:
                self._holds[number] = replace(hold, filled=_find_missing_columns(hold.after, last))
        self._restore_definitions(group, last, start)
        return Release(tuple(_remove_repeats(table_steps)), alert)

    def _find_common_shape(self, group: Sequence[TableDef]) -> RowLayout | None:
        """The first shape that each table of `group` has reached, except tables that are passed over."""
        waiting = [self._list_steps(table.id) for table in group if self._find_passed_over(table) is None]
        if not waiting or not all(waiting):
            return None
        for hold in waiting[0]:
            layout = RowLayout(hold.after)
            if all(self._find_steps_up_to(steps[0].after.id, layout) for steps in waiting):
                return layout
        return None

    def _find_steps_up_to(self, table_id: int, reached: RowLayout) -> list[Hold]:
        """The steps of a table up to the first one that results in the shape `reached`; empty if none does."""
        steps = self._list_steps(table_id)
        last = next((hold for hold in steps if RowLayout(hold.after) == reached), None)
        if last is None:
            return []
        # If its table was renamed meanwhile, a step continues under the new name.
        ends = max(number for number, hold in enumerate(steps) if hold.commit_ts == last.commit_ts) + 1
        return steps[:ends] if keeps_rows_readable(steps[:ends], last.after) else []

    def _restore_definitions(self, group: Sequence[TableDef], reached: TableDef, start: int) -> None:
        """Set the target's definition of each table after a release that changed it to `reached`."""
        for table in group:
            steps, passed = self._list_steps(table.id), self._find_passed_over(table)
            if passed is not None:
                own = self._tables.find_source_definition(table)
                shown = as_table(reached, table)
                if passed.created:
                    shown = fill_with_defaults(shown, list_lacking_columns(own, shown))
                self._update_passed_over(passed, shown, passed.source, start)
                self._tables.show(shown)
                if passed.created and RowLayout(own) == RowLayout(reached):
                    # The others have dropped what it did not have when it was created.
                    self.has_caught_up(own, own, start)
            else:
                self._tables.show(as_table(steps[0].before if steps else self._find_last_definition(table), table))

    def _update_passed_over(self, passed: PassedOver, table: TableDef, source: Name, since: int) -> None:
        """Record that from `since` on the target has the definition `table` for a passed-over table."""
        self._passed.remove(passed)
        if passed.since < since:
            self._passed.append(replace(passed, until=since))
        self._passed.append(replace(passed, source=source, since=since, table=table))

    def _find_last_definition(self, table: TableDef) -> TableDef:
        return next(hold.after for hold in reversed(self._holds) if hold.after.id == table.id)

    def _select_waiting_holds(self, target: Name) -> list[Hold]:
        return [hold for hold in self._holds if hold.waits and hold.target == target]

    def _list_waiting_ids(self, target: Name) -> list[int]:
        return list(dict.fromkeys(hold.after.id for hold in self._select_waiting_holds(target)))

    def _list_steps(self, table_id: int) -> list[Hold]:
        steps = [hold for hold in self._holds if hold.waits and hold.after.id == table_id]
        return sorted(steps, key=lambda hold: hold.since)

    def _find_passed_over(self, table: TableDef) -> PassedOver | None:
        return next((entry for entry in self._passed if entry.until == OPEN and entry.table.id == table.id), None)


def _require_readable(tables: Iterable[TableDef], last: TableDef) -> None:
    """Raises Conflict if rows of one of `tables` would differ in a table with the definition `last`."""
    for table in tables:
        name = find_unreadable_column(table, last)
        if name:
            raise Conflict(
                f"column {name}: rows of {table.db}.{table.name} were written under another name or type of the column"
                " and would differ at the target"
            )


def _remove_repeats(steps: Sequence[Hold]) -> list[Hold]:
    """Each step once, even if it continued under a new name."""
    return list({hold.commit_ts: hold for hold in steps}.values())


def _find_missing_columns(table: TableDef, last: TableDef) -> dict[str, str]:
    """The columns that rows of `table` lack when they are released with the definition `last`, and their values."""
    lacking = [column for column in last.row_columns if table.find_column(column.name) is None]
    texts = {column.name: derive_filled_text(column) for column in lacking}
    return {name: text for name, text in texts.items() if text is not None}


def _build_name(table: TableDef) -> Name:
    return table.db, table.name
