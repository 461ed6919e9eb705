"""The manifests of merge and compact: everything on which later stages base decisions, and nothing only for people.

A manifest is stored in the row of the table `window` that records the end of the stage, so both are written together.
It has no data about the run, so a repeated stage seals the same text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

from binlake.ddl.definitions import Shapes
from binlake.ddl.shardlocks import Locks
from binlake.errors import DamagedManifest
from binlake.window.manifest import OfWindow, digest_text, encode_canonical_json, format_window_name, seal, unseal


@dataclass(frozen=True)
class Merged:
    """Totals of merged landed `windows`: row changes and DDL, skipped DDL included; `whole`: no row was left out.

    `base`: how many of the rows are of a full load and came in blocks of columns.
    """

    rows: int
    ddls: int
    whole: bool
    windows: tuple[str, ...]
    base: int = 0

    @property
    def empty(self) -> bool:
        """True when no rows and no DDL were merged."""
        return self.rows == 0 and self.ddls == 0

    @classmethod
    def add_up(cls, parts: Iterable[Merged]) -> Merged:
        """The totals of consecutive windows."""
        every = list(parts)
        return cls(
            sum(part.rows for part in every),
            sum(part.ddls for part in every),
            all(part.whole for part in every),
            tuple(window for part in every for window in part.windows),
            sum(part.base for part in every),
        )

    def to_body(self) -> dict[str, Any]:
        """Plain values for JSON."""
        base = {"base": self.base} if self.base else {}
        return {"rows": self.rows, "ddls": self.ddls, "whole": self.whole, "windows": list(self.windows), **base}

    @classmethod
    def from_body(cls, raw: Mapping[str, Any]) -> Merged:
        """Parse what `body` wrote."""
        base = int(raw.get("base", 0))
        return cls(int(raw["rows"]), int(raw["ddls"]), bool(raw["whole"]), tuple(raw["windows"]), base)


@dataclass(frozen=True)
class MergeManifest(OfWindow):
    """Sealed by merge for one landed window (lo, hi]; read by compact and mirror.

    `locks`: the window's holds of tables that share a target.
    """

    VERSION: ClassVar[int] = 1

    replication: str
    lo: int
    hi: int
    merged: Merged
    locks: Locks = field(default_factory=Locks)

    def to_json(self) -> str:
        """The sealed text."""
        place = {"replication": self.replication, "lo": self.lo, "hi": self.hi}
        locks = {"locks": self.locks.to_dict()} if self.locks else {}
        return seal("merge", self.VERSION, {**place, "merged": self.merged.to_body(), **locks})

    @classmethod
    def from_json(cls, text: str) -> MergeManifest:
        """Parse what `to_json` wrote. Raises DamagedManifest."""
        return _build("merge", unseal(text, "merge", cls.VERSION), cls._from_body)

    @classmethod
    def _from_body(cls, raw: Mapping[str, Any]) -> MergeManifest:
        merged, locks = Merged.from_body(raw["merged"]), Locks.from_dict(raw.get("locks", {}))
        return cls(str(raw["replication"]), raw["lo"], raw["hi"], merged, locks)


@dataclass(frozen=True)
class CompactManifest(OfWindow):
    """Sealed by compact for a sink's window (lo, hi]; read by convert and finalize.

    `ordered`: the target has that mode, so `change` has no rows of the window; `rows`: the number of rows in `change`;
    `merged`: the input; `cuts`: the commit_ts at which its segments start, from the second one; `shapes`: how tables of
    the target differed from the source's at lo; `change`: the digest of the rows if they are not in the lake (empty:
    they are). `base`: the rows came in blocks of a full load, and each is its own net change; `change` then follows
    from the blocks.
    """

    VERSION: ClassVar[int] = 1

    replication: str
    sink: str
    lo: int
    hi: int
    ordered: bool
    rows: int
    merged: Merged
    cuts: tuple[int, ...] = ()
    shapes: Shapes = field(default_factory=Shapes)
    change: str = ""
    base: bool = False

    def to_json(self) -> str:
        """The sealed text."""
        return seal("compact", self.VERSION, self._to_body())

    @classmethod
    def from_json(cls, text: str) -> CompactManifest:
        """Parse what `to_json` wrote. Raises DamagedManifest."""
        return _build("compact", unseal(text, "compact", cls.VERSION), cls._from_body)

    def compute_digest(self) -> str:
        """The digest of its seal, by which the apply manifest refers to it."""
        return digest_text(encode_canonical_json(self._to_body()))

    def _to_body(self) -> dict[str, Any]:
        place = {"replication": self.replication, "sink": self.sink, "lo": self.lo, "hi": self.hi}
        values = {"ordered": self.ordered, "rows": self.rows, "merged": self.merged.to_body()}
        values |= {"cuts": [str(ts) for ts in self.cuts], "shapes": self.shapes.to_list()}
        # Omitted when empty, so that manifests sealed before they existed keep their digest.
        later = {"change": self.change, "base": self.base}
        return {**place, **values, **{name: value for name, value in later.items() if value}}

    @classmethod
    def _from_body(cls, raw: Mapping[str, Any]) -> CompactManifest:
        return cls(
            str(raw["replication"]),
            str(raw["sink"]),
            raw["lo"],
            raw["hi"],
            bool(raw["ordered"]),
            int(raw["rows"]),
            Merged.from_body(raw["merged"]),
            tuple(int(ts) for ts in raw["cuts"]),
            Shapes.from_list(raw["shapes"]),
            str(raw.get("change", "")),
            bool(raw.get("base", False)),
        )


Manifest = TypeVar("Manifest", MergeManifest, CompactManifest)


def require_manifest_of(manifest: Manifest, replication: str, lo: int, hi: int) -> Manifest:
    """Return `manifest` if it was sealed for this window of this replication. Raises DamagedManifest."""
    if (manifest.replication, manifest.lo, manifest.hi) != (replication, lo, hi):
        raise DamagedManifest(
            "the manifest belongs to another window",
            where={"sealed_for": f"{manifest.replication} {manifest.window}"},
        )
    return manifest


def read_manifest_of(kind: type[Manifest], text: str, replication: str, lo: int, hi: int, *, hint: str) -> Manifest:
    """Parse the manifest of this window of this replication. Raises DamagedManifest with the window and `hint`."""
    try:
        return require_manifest_of(kind.from_json(text), replication, lo, hi)
    except DamagedManifest as error:
        where = {"window": format_window_name(lo, hi), **error.where}
        raise DamagedManifest(error.message, where=where, hint=hint) from None


def _build(kind: str, body: Mapping[str, Any], make: Callable[[Mapping[str, Any]], Manifest]) -> Manifest:
    try:
        return make(body)
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedManifest(f"the {kind} manifest lacks a value or has one of a wrong type: {error!r}") from None
