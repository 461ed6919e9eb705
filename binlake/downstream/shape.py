"""How a target's table is shaped unlike the source's, and the definition that both sides share.

Rules: MISSION S4-26, S4-27, data-migration 1.2 and 1.6, tidb-binlog 5.10 (sync-mode); hazards R-12, R-13. The shape is
read from the target when a window is derived; with it every later step sees one definition: the source's columns that
the target takes, and the unique keys that both have. So the identity of a row is that of the target.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from binlake.config.model import Target, TargetTable
from binlake.downstream.forms import TableForm
from binlake.downstream.structure import StructureDifference, shared_identity, structure_differences
from binlake.filter.patterns import drainer_pattern
from binlake.schema import IndexInfo, TableDef
from binlake.schema.actions import PUBLIC
from binlake.schema.names import fold_name

Name = tuple[str, str]


@dataclass(frozen=True)
class TableShape:
    """What of a table is not alike. `own`: columns of the target alone; `kept`: those whose values must be kept, as the
    target spells them; `dropped`: columns of the source that are not written; `lost`: columns of the source's unique
    keys that are none at the target. Names of `dropped` and `lost` in lower case.
    """

    own: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    lost: tuple[tuple[str, ...], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.own or self.dropped or self.lost)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"own": self.own, "kept": self.kept, "dropped": self.dropped, "lost": self.lost}

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> TableShape:
        """The shape of `to_dict`."""
        lost = tuple(tuple(columns) for columns in raw["lost"])
        return cls(tuple(raw["own"]), tuple(raw["kept"]), tuple(raw["dropped"]), lost)

    def of(self, table: TableDef) -> TableDef:
        """The definition that the source's `table` and the target share."""
        gone = frozenset(self.dropped)
        columns = tuple(column for column in table.all_columns if fold_name(column.name) not in gone)
        # A definition may spell its integer key as a flag: from here on every unique key is an index.
        keys = [key for key in table.unique_keys() if self._is_shared(key, gone)]
        plain = [index for index in table.indexes if not (index.unique and index.state == PUBLIC)]
        return replace(
            table,
            all_columns=columns,
            indexes=(*keys, *plain),
            pk_is_handle=False,
            is_common_handle=False,
            own=self.own,
            kept=self.kept,
        )

    def _is_shared(self, key: IndexInfo, gone: frozenset[str]) -> bool:
        names = tuple(sorted(fold_name(part.name) for part in key.columns))
        return names not in self.lost and gone.isdisjoint(names)


def shape_of(source: TableForm, target: TableForm, option: TargetTable | None, sync_mode: int) -> TableShape:
    """What the configuration lets differ; the rest stays a difference that `refused` names."""
    preserve = option is not None and option.preserve
    if target.kind != "table" or source.kind != "table" or not (preserve or sync_mode == 2):
        return TableShape()
    weights = {found.text: found.weight for found in structure_differences(source, target)}
    theirs = {column.name: column for column in target.columns}
    dropped = [
        c.name
        for c in source.columns
        if (c.name not in theirs or (theirs[c.name].generated and not c.generated)) and _may_drop(weights, c.name)
    ]
    own = [c for c in target.columns if c.name in dropped or (preserve and _may_keep(weights, c.name))]
    lost: list[tuple[str, ...]] = []
    if shared_identity(source, target):
        lost = sorted(tuple(sorted(name for name, _ in key)) for key in source.unique_keys - target.unique_keys)
    kept = [column.name for column in own if not column.generated and not column.renewed]
    return TableShape(tuple(c.name for c in own), tuple(kept), tuple(dropped), tuple(lost))


def _may_keep(weights: Mapping[str, str], name: str) -> bool:
    return weights.get(f"column {name} is the target's own") == "preserve"


def _may_drop(weights: Mapping[str, str], name: str) -> bool:
    found = [weight for text, weight in weights.items() if text.startswith(f"column {name} is ")]
    return bool(found) and all(weight == "partial" for weight in found)


def option_of(target: Target, name: Name) -> TargetTable | None:
    """The first entry of `target.tables` for the target's table `name`."""
    for option in target.tables:
        if drainer_pattern(option.db_name).matches(name[0]) and drainer_pattern(option.tbl_name).matches(name[1]):
            return option
    return None


def refused(differences: Iterable[StructureDifference], accepted: Collection[str] = ()) -> list[str]:
    """The differences that lose rows or values and that nobody accepted, for people."""
    return [found.text for found in differences if found.weight != "harmless" and found.text not in accepted]
