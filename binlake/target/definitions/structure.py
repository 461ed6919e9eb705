"""Compares the structures of both sides: the differences, how serious each is, and the shape that follows.

Rules: data-migration 1.2 and 1.6 (structures of upstream and downstream), MISSION S4-22, S4-26, S4-27, tidb-binlog 5.10
(sync-mode); hazards R-12, R-13. This module does no I/O: `definitions` reads the target.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from binlake.config.servers import TargetSection, TargetTable
from binlake.ddl.definitions import TableShape
from binlake.rules.patterns import compile_drainer_pattern
from binlake.target.definitions.forms import ColumnForm, Name, TableForm, keeps_apart

Weight = Literal["harmless", "partial", "preserve", "fatal"]
Key = frozenset[tuple[str, int]]
_ORDER: list[Weight] = ["fatal", "preserve", "partial", "harmless"]


@dataclass(frozen=True)
class StructureDifference:
    """A difference and its `weight`.

    `harmless`: rows are stored unchanged. `partial`: the target lacks a column; only sync-mode 2 can write to it.
    `preserve`: only a mode that preserves the target's own values can write to it, because REPLACE would erase them.
    `fatal`: rows or values would be lost.
    """

    text: str
    weight: Weight


def compare_structures(source: TableForm, target: TableForm | None) -> list[StructureDifference]:
    """Every difference, worst first, except columns of `source.own` and their keys."""
    if target is None:
        return [StructureDifference(f"the {source.kind} is missing", "fatal")]
    if source.kind != target.kind:
        return [StructureDifference(f"it is a {target.kind}, not a {source.kind}", "fatal")]
    target = target.without(source.own)
    differences = [*_compare_engines(target), *_compare_columns(source, target), *_compare_keys(source, target)]
    return sorted(differences, key=lambda one: (_ORDER.index(one.weight), one.text))


def find_shared_identity(source: TableForm, target: TableForm) -> tuple[str, ...]:
    """The NOT NULL columns of a unique key without prefixes that both sides have; () if there is none.

    The shortest such key, then by name. A row is found by it, whatever the target's primary key is.
    """
    plain = {column.name for column in source.columns if not column.nullable and not column.generated}
    shared = (key for key in source.unique_keys & target.unique_keys if all(length == 0 for _, length in key))
    keys = [tuple(sorted(name for name, _ in key)) for key in shared]
    return min((key for key in keys if plain.issuperset(key)), key=lambda key: (len(key), key), default=())


def _compare_engines(target: TableForm) -> Iterator[StructureDifference]:
    if target.engine:
        text = f"its engine {target.engine} has no transactions: a repetition would double rows or lose them"
        yield StructureDifference(text, "fatal")


def _compare_columns(source: TableForm, target: TableForm) -> Iterator[StructureDifference]:
    mine, theirs = _collect_columns_by_name(source), _collect_columns_by_name(target)
    for name in mine.keys() - theirs.keys():
        yield StructureDifference(f"column {name} is missing: its values would be lost", "partial")
    keyless = not find_shared_identity(source, target)
    for name in theirs.keys() - mine.keys():
        yield _judge_own_column(theirs[name], keyless=keyless)
    for name in mine.keys() & theirs.keys():
        yield from _compare_column(mine[name], theirs[name])


def _judge_own_column(column: ColumnForm, *, keyless: bool) -> StructureDifference:
    text = f"column {column.name} is the target's own"
    if not column.filled and not column.generated:
        return StructureDifference(f"{text} and has no default", "fatal")
    if keyless:
        return StructureDifference(f"{text}, and no key of both sides tells whose value it is", "fatal")
    return StructureDifference(text, "preserve")


def _compare_column(mine: ColumnForm, theirs: ColumnForm) -> Iterator[StructureDifference]:
    # A FLOAT or DOUBLE without (M,D) holds every value of one with it, unchanged.
    if theirs.type not in (mine.type, re.sub(r"^(float|double)\(\d+,\d+\)", r"\1", mine.type)):
        yield StructureDifference(f"column {mine.name} is {theirs.type}, not {mine.type}", "fatal")
    if mine.collation != theirs.collation:
        yield StructureDifference(
            f"column {mine.name} has collation {theirs.collation or 'none'}, not {mine.collation or 'none'}", "fatal"
        )
    if mine.generated != theirs.generated:
        weight: Weight = "harmless" if mine.generated and theirs.generated else "fatal"
        weight = "partial" if theirs.generated and not mine.generated else weight
        remedy = ": its values come from the source, so MODIFY it at the target to a column without an expression"
        yield StructureDifference(
            f"column {mine.name} is {theirs.generated or 'not generated'}, not {mine.generated or 'plain'}"
            + remedy * (theirs.generated == "stored" and not mine.generated),
            weight,
        )
    elif mine.nullable and not theirs.nullable and not mine.generated:
        yield StructureDifference(f"column {mine.name} is NOT NULL, unlike the source", "fatal")
    elif theirs.nullable and not mine.nullable and not mine.generated:
        yield StructureDifference(f"column {mine.name} is NULL, unlike the source", "harmless")


def _compare_keys(source: TableForm, target: TableForm) -> Iterator[StructureDifference]:
    identity = find_shared_identity(source, target)
    for key in source.unique_keys - target.unique_keys:
        yield StructureDifference(f"unique key ({_format_key(key)}) is missing", "preserve" if identity else "fatal")
    own = _collect_columns_by_name(target).keys() - _collect_columns_by_name(source).keys()
    filled = {column.name: column.filled for column in target.columns if column.name in own}
    for key in target.unique_keys - source.unique_keys:
        distinct = identity and keeps_apart(key, filled)
        weight: Weight = "preserve" if distinct else "fatal"
        yield StructureDifference(f"unique key ({_format_key(key)}) is the target's own", weight)


def _collect_columns_by_name(form: TableForm) -> dict[str, ColumnForm]:
    return {column.name: column for column in form.columns}


def _format_key(key: Key) -> str:
    return ", ".join(sorted(name + (f"({length})" if length else "") for name, length in key))


def derive_shape(source: TableForm, target: TableForm, option: TargetTable | None, sync_mode: int) -> TableShape:
    """The differences that the configuration allows; `list_refusals` names the others."""
    preserve = option is not None and option.preserve
    if target.kind != "table" or source.kind != "table" or not (preserve or sync_mode == 2):
        return TableShape()
    weights = {found.text: found.weight for found in compare_structures(source, target)}
    theirs = {column.name: column for column in target.columns}
    dropped = [
        c.name
        for c in source.columns
        if (c.name not in theirs or (theirs[c.name].generated and not c.generated)) and _may_drop(weights, c.name)
    ]
    own = [c for c in target.columns if c.name in dropped or (preserve and _may_keep(weights, c.name))]
    lost: list[tuple[str, ...]] = []
    if find_shared_identity(source, target):
        lost = sorted(tuple(sorted(name for name, _ in key)) for key in source.unique_keys - target.unique_keys)
    preserved = [column.name for column in own if not column.generated and not column.renewed]
    return TableShape(tuple(c.name for c in own), tuple(preserved), tuple(dropped), tuple(lost))


def _may_keep(weights: Mapping[str, str], name: str) -> bool:
    return weights.get(f"column {name} is the target's own") == "preserve"


def _may_drop(weights: Mapping[str, str], name: str) -> bool:
    weights_of_column = [weight for text, weight in weights.items() if text.startswith(f"column {name} is ")]
    return bool(weights_of_column) and all(weight == "partial" for weight in weights_of_column)


def find_option(target: TargetSection, name: Name) -> TargetTable | None:
    """The first entry of `target.tables` that matches the target's table `name`."""
    for option in target.tables:
        if compile_drainer_pattern(option.db_name).matches(name[0]) and compile_drainer_pattern(
            option.tbl_name
        ).matches(name[1]):
            return option
    return None


def list_refusals(differences: Iterable[StructureDifference], accepted: Collection[str] = ()) -> list[str]:
    """The differences that lose rows or values and are not accepted, for people."""
    return [found.text for found in differences if found.weight != "harmless" and found.text not in accepted]
