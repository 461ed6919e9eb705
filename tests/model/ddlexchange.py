"""EXCHANGE PARTITION of a `World`, with concurrent writers of the previous version (capture `zones`, table `Monat`).

A partition and a plain table exchange their rows, and no row change shows that. A writer that began before it still
uses the old tables: its row is logged for one table but is stored in the other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ddltables import Key, Line, Live, View
from ddlworld import Ddl

from binlake.rows.schema import Action

if TYPE_CHECKING:
    from ddlkinds import Draw


@dataclass(frozen=True)
class _Side:
    """Both tables before or after the DDL; the id of the exchanged partition, and the partition recorded for rows of
    the plain table."""

    parted: View
    plain: View
    part: int
    noted: int | None


def exchange(draw: Draw) -> None:
    """Create a plain table and write to it, exchange a partition of another table for it, and write late rows."""
    world = draw.world
    fit = [live for live in world.tables if _is_fit(live.view)]
    if not fit:
        draw.create("parted")
        fit = [live for live in world.tables[-1:] if _is_fit(live.view)]
    name = draw._free_name(world.databases[0])
    if not fit or name is None:
        return
    parted = draw.random.choice(fit)
    view = parted.view
    part = draw.random.choice(view.parts)
    keys = tuple(Key(next(world.ids), key.name, key.columns, key.unique, key.primary) for key in view.keys)
    before = replace(view, name=name, id=next(world.ids), keys=keys, only=part.id)
    plain = Live(before)
    world.tables.append(plain)
    world.version += 1
    world.log(draw._log(Action.CREATE_TABLE, f"CREATE TABLE `{name}` {before.create_sql()}", before))
    for _ in range(3):
        world.transaction(draw.random.choice((plain, plain, parted, None)))
    parts = tuple(replace(one, id=before.id) if one == part else one for one in view.parts)
    after = replace(before, id=part.id, parts=(), parted=0, moments=False, only=0)
    old = _Side(view, before, part.id, part.id)
    new = _Side(replace(view, parts=parts), after, before.id, None)
    # In the first version, writers of the plain table check the partition's bounds; the second is the exchange.
    world.version += 1
    for _ in range(draw.random.choice((0, 1, 2))):
        world.transaction(draw.random.choice((plain, parted)))
    world.version += 1
    _trade(parted, plain, old, new)
    text = f"ALTER TABLE {draw.table(view)} EXCHANGE PARTITION {draw.spelt(part.name)} WITH TABLE {draw.spelt(name)}"
    world.log(Ddl(Action.EXCHANGE_PARTITION, text, view.db, new.parted, before.id, name.lower(), draw.told_zone))
    for _ in range(draw.random.choice((0, 1, 2, 3)) if draw.features.ahead else 0):
        _write_late(draw, parted, plain, (old, new))


def _is_fit(view: View) -> bool:
    """Whether it has partitions, and no column whose value for older rows is noted: such a note is per table."""
    return bool(view.parts) and all(column.origin is None for column in view.columns)


def _write_late(draw: Draw, parted: Live, plain: Live, sides: tuple[_Side, _Side]) -> None:
    """A transaction of the previous version, in the plain table or in one partition. If it had rows in several
    partitions, one of them the exchanged one, its tables could not be told apart."""
    old, new = sides
    only = draw.random.choice((0, old.part, *(part.id for part in old.parted.parts)))
    others: list[Line] = []

    def back() -> None:
        _trade(parted, plain, new, old)
        if only:
            others[:] = [line for line in parted.lines if line.part != only]
            parted.lines = [line for line in parted.lines if line.part == only]
            parted.view = replace(old.parted, only=only)

    def again() -> None:
        parted.lines += others
        _trade(parted, plain, old, new)

    draw.world.late(parted if only else plain, back, again)


def _trade(parted: Live, plain: Live, now: _Side, then: _Side) -> None:
    inside = [line for line in parted.lines if line.part == now.part]
    stay = [line for line in parted.lines if line.part != now.part]
    for line in plain.lines:
        line.part = then.part
    for line in inside:
        line.part = then.noted
    parted.lines, plain.lines = [*stay, *plain.lines], inside
    parted.view, plain.view = then.parted, then.plain
