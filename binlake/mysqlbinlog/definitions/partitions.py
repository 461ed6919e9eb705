"""The partitions of a described table as TiDB's PartitionInfo, which DROP and TRUNCATE PARTITION remove by name.

A partition keeps its id as long as it holds the same rows: TRUNCATE, another bound or another way of partitioning gives
a new one. Subpartitions are not modelled, because no statement removes the rows of a single one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from itertools import pairwise

from binlake.dialect.tokens import Token, find_closing, render, split_list
from binlake.mysqlbinlog.definitions.columntext import create_tokens
from binlake.mysqlbinlog.model import Flavor
from binlake.rows.schema import TableDef
from binlake.rows.schema.forms import Json, build_name_json, fold_name
from binlake.rows.schema.partitions import HASHED_NULL_KEY

_KINDS = {"RANGE": 1, "HASH": 2, "LIST": 3, "KEY": 4}
_UNLIKE_TIDB = 0
"""The kind of LINEAR HASH and LINEAR KEY, which TiDB does not have."""


def add_partitions(
    info: Json,
    create: str,
    flavor: Flavor,
    allocate_id: Callable[[], int],
    former: TableDef | None = None,
    emptied: Set[str] | None = frozenset(),
) -> Json:
    """`info` (TableInfo) with the partitions in `create`, the table's CREATE TABLE.

    `former`: the table before the statement; `emptied`: the (folded) names of partitions that the statement truncated,
    None for all of them.
    """
    partition = _read_partitioning(create, flavor)
    if partition is None:
        return {**info, "partition": None}
    known = _find_kept_ids(partition, former, emptied)
    definitions = [
        {"id": known.get(definition["name"]["L"]) or allocate_id(), **definition}
        for definition in partition["definitions"]
    ]
    return {**info, "partition": {**partition, "definitions": definitions}}


def find_truncated_partitions(clauses: Sequence[Token]) -> frozenset[str] | None:
    """The (folded) names in `TRUNCATE PARTITION name, ...`; None for ALL, empty for other `clauses` of an ALTER."""
    if len(clauses) < 3 or not (clauses[0].is_word("TRUNCATE") and clauses[1].is_word("PARTITION")):
        return frozenset()
    if clauses[2].is_word("ALL"):
        return None
    return frozenset(fold_name(part[0].value) for part in split_list(clauses[2:]) if part)


def exchange_ids(partitioned: TableDef, name: str, plain: TableDef) -> Json | None:
    """TableInfo of `partitioned` after its partition `name` and `plain` exchanged their ids; None if it is not known.

    As in TiDB: the rows keep their id, so the plain table goes on with the id that the partition had.
    """
    partition = partitioned.raw.get("partition") or {"definitions": []}
    found = [one for one in partition["definitions"] if one["name"]["L"] == fold_name(name)]
    if not found:
        return None
    definitions = [{**one, "id": plain.id} if one is found[0] else one for one in partition["definitions"]]
    return {**partitioned.raw, "partition": {**partition, "definitions": definitions}}


def _find_kept_ids(partition: Json, former: TableDef | None, emptied: Set[str] | None) -> dict[str, int]:
    """The ids, by folded name, of the partitions of `former` that hold the same rows in `partition`."""
    before = (former.raw.get("partition") if former is not None else None) or {}
    count = len(partition["definitions"])
    if emptied is None or any(before.get(name) != partition[name] for name in ("type", "expr", "columns")):
        return {}
    if partition["type"] not in (_KINDS["RANGE"], _KINDS["LIST"]) and len(before["definitions"]) != count:
        return {}
    had = {_get_identity(definition): int(definition["id"]) for definition in before["definitions"]}
    kept = {definition["name"]["L"]: had.get(_get_identity(definition), 0) for definition in partition["definitions"]}
    return {name: partition_id for name, partition_id in kept.items() if partition_id and name not in emptied}


def _get_identity(definition: Json) -> tuple[str, str]:
    """The name and the bound of a partition. DROP widens the next range, in which there are no rows then."""
    return definition["name"]["L"], repr((definition["less_than"], definition["in_values"]))


def _read_partitioning(create: str, flavor: Flavor) -> Json | None:
    """PartitionInfo without ids; None for a table that is not partitioned."""
    tokens = create_tokens(create, flavor)
    end = find_closing(tokens, next(at for at, token in enumerate(tokens) if token.is_mark("(")))
    by = next(
        (
            at + end + 2
            for at, (one, other) in enumerate(pairwise(tokens[end:]))
            if one.is_word("PARTITION") and other.is_word("BY")
        ),
        len(tokens),
    )
    kind = next((token.text.upper() for token in tokens[by : by + 2] if token.is_word(*_KINDS)), "")
    if not kind:
        return None
    start = next(at for at in range(by, len(tokens)) if tokens[at].is_mark("("))
    close = find_closing(tokens, start)
    inside = tokens[start + 1 : close]
    in_columns = kind == "KEY" or any(token.is_word("COLUMNS") for token in tokens[by:start])
    definitions = _read_definitions(tokens[close + 1 :])
    return {
        "type": _UNLIKE_TIDB if tokens[by].is_word("LINEAR") else _KINDS[kind],
        "expr": "" if in_columns else render(inside),
        "columns": [build_name_json(part[0].value) for part in split_list(inside) if part] if in_columns else None,
        "enable": True, "definitions": definitions, "num": len(definitions), HASHED_NULL_KEY: -(1 << 63),
    }  # fmt: skip


def _read_definitions(rest: Sequence[Token]) -> list[Json]:
    """The partitions after the expression: a list of definitions, or `PARTITIONS n`, whose names are p0, p1, ..."""
    listed = next(
        (at for at, (one, other) in enumerate(pairwise(rest)) if one.is_mark("(") and other.is_word("PARTITION")), None
    )
    if listed is not None:
        return [_read_definition(part) for part in split_list(rest[listed + 1 : find_closing(rest, listed)])]
    count = next((int(other.text) for one, other in pairwise(rest) if one.is_word("PARTITIONS")), 1)
    return [_build_definition(f"p{number}") for number in range(count)]


def _read_definition(part: Sequence[Token]) -> Json:
    """`PARTITION name [VALUES LESS THAN bound | VALUES IN (values) | DEFAULT] options`."""
    name = part[1].value
    if len(part) > 2 and part[2].is_word("DEFAULT"):
        return _build_definition(name, values=[["DEFAULT"]])
    if len(part) < 5 or not part[2].is_word("VALUES"):
        return _build_definition(name)
    if part[3].is_word("IN"):
        inside = part[5 : find_closing(part, 4)]
        return _build_definition(name, values=[_read_tuple(value) for value in split_list(inside)])
    if part[5].is_mark("("):
        return _build_definition(
            name, less_than=[render(value) for value in split_list(part[6 : find_closing(part, 5)])]
        )
    return _build_definition(name, less_than=[part[5].text.upper()])


def _read_tuple(value: Sequence[Token]) -> list[str]:
    """The values of `1` or `(1, 2)` in a list."""
    if value and value[0].is_mark("("):
        return [render(one) for one in split_list(value[1 : find_closing(value, 0)])]
    return [render(value)]


def _build_definition(name: str, *, less_than: list[str] | None = None, values: list[list[str]] | None = None) -> Json:
    return {"name": build_name_json(name), "less_than": less_than, "in_values": values}
