"""REORGANIZE PARTITION of a `World`, of tables with a key, with writers at each step (capture `zones`, table `Teile`).

From four versions before the job's version on, a row that leaves the affected partitions is also removed from the new
ones; from the next version on, every change goes to both sets. At the last version but one, reads use the new
partitions, and the old ones are the second set. Both writes are in the binlog, one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ddltables import Live, Part, View, part_sql
from ddltypes import utc
from ddlworld import ZONES, seconds_of

from binlake.rows.schema import Action

if TYPE_CHECKING:
    from ddlkinds import Draw

_BETWEEN = ("2020-12-31 22:00:00", "2021-02-28 22:00:00", "2021-07-15 22:00:00")
"""Times between those of the rows and those of the partition bounds."""


@dataclass(frozen=True)
class _Change:
    """Adjacent partitions `gone`, which `made` replace."""

    gone: tuple[Part, ...]
    made: tuple[Part, ...]


def reorganize(draw: Draw) -> None:
    """A random REORGANIZE of a table that exists or is created for it."""
    world = draw.world
    if not any(live.view.parts for live in world.tables):
        draw.create("parted")
    fit = [live for live in world.tables if live.view.parts]
    if not fit:
        return
    live = draw.random.choice(fit)
    zone = draw.zone(told=True)
    change = _change(draw, live.view, zone)
    if change is not None:
        _run(draw, live, change, zone)


def _change(draw: Draw, view: View, zone: str) -> _Change | None:
    at = draw.random.randrange(len(view.parts))
    one, following = view.parts[at], view.parts[at + 1 : at + 2]
    if following and draw.random.random() < 0.4:
        return _Change((one, *following), (_again(draw, following[0]),))
    least = view.parts[at - 1].bound if at else None
    bounds = [bound for bound in _bounds(view, zone) if (least is None or bound[0] > least)]
    bounds = [bound for bound in bounds if one.bound is None or bound[0] < one.bound]
    if bounds and draw.random.random() < 0.8:
        lower = _part(draw, f"R{draw.world.version}", *draw.random.choice(bounds))
        return _Change((one,), (lower, _again(draw, one)))
    if not following and one.bound is not None and not view.moments:
        return _Change((one,), (_part(draw, one.name, one.bound + 5, str(one.bound + 5)),))
    return None


def _bounds(view: View, zone: str) -> list[tuple[int, str]]:
    if not view.moments:
        return [(bound, str(bound)) for bound in (-1, 1, 3, 5, 20)]
    bounds = [(seconds_of(utc(day, ZONES[zone][0])), f"UNIX_TIMESTAMP(_UTF8MB4'{day}')") for day in _BETWEEN]
    return [(seconds, literal) for seconds, literal in bounds if seconds is not None]


def _part(draw: Draw, name: str, bound: int | None, literal: str) -> Part:
    return Part(next(draw.world.ids), name, bound, literal)


def _again(draw: Draw, part: Part) -> Part:
    """A new partition with the same bound, which another session's zone does not change."""
    return _part(draw, part.name, part.bound, part.literal if part.bound is None else str(part.bound))


def _run(draw: Draw, live: Live, change: _Change, zone: str) -> None:
    world, view = draw.world, live.view
    at = view.parts.index(change.gone[0])
    parts = (*view.parts[:at], *change.made, *view.parts[at + len(change.gone) :])
    final = replace(view, parts=parts)
    old = replace(view, twice=frozenset(part.id for part in change.gone))
    new = replace(final, twice=frozenset(part.id for part in change.made))
    steps = (replace(old, leaving=True), old, old, new) if draw.features.ahead else ()
    began = copied = world.clock()
    for number, step in enumerate(steps):
        world.version += 1
        _show(live, step)
        if number == 2:
            world.transaction(live)
            copied = world.clock()
        for _ in range(draw.random.choice((0, 1, 1, 2))):
            world.transaction(live if draw.random.random() < 0.8 else None)
    world.version += 1
    _show(live, final)
    names = ", ".join(draw.spelt(part.name) for part in change.gone)
    made = ", ".join(part_sql(part) for part in change.made)
    text = f"ALTER TABLE {draw.table(view)} REORGANIZE PARTITION {names} INTO ({made})"
    world.log(draw._log(Action.REORGANIZE_PARTITION, text, final, zone), times=(began, copied))


def _show(live: Live, view: View) -> None:
    """Show writers `view`; each row is in one of its partitions."""
    live.view = view
    for line in live.lines:
        line.part = view.part_of(line.stored, seconds_of(line.stored[view.parted]) if view.moments else None)
