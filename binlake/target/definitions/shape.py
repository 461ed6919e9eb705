"""How a target table's shape differs from the source's, read from the target when a window is derived.

Rules: MISSION S4-26, S4-27, data-migration 1.2 and 1.6, tidb-binlog 5.10 (sync-mode); hazards R-12, R-13.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from binlake.config.servers import TargetSection, TargetTable
from binlake.ddl.definitions import TableShape
from binlake.rules.patterns import compile_drainer_pattern
from binlake.target.definitions.forms import Name, TableForm
from binlake.target.definitions.structure import StructureDifference, compare_structures, find_shared_identity


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
