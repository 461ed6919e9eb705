"""A shop whose rows continuous validation compares after each window."""

from __future__ import annotations

from typing import Any

from support.shop import Shop
from support.tinylake import set_checkpoint

from binlake.config import Replication
from binlake.extras.validation import ValidationResult, validate
from binlake.extras.validation.ledger import ValidationLedger
from binlake.lake.windowlog import WindowLog


class Watched:
    """A shop whose validation has passed its first window; each `window` changes some items and is applied."""

    def __init__(self, shop: Shop, **options: Any) -> None:
        self.shop, self.lake = shop, shop.lake
        self.options = {"mode": "full", **options}
        self.windows = WindowLog(self.lake.paths)
        self.source: dict[str, Any] = {}
        self.run()

    def run(self, **options: Any) -> ValidationResult:
        sections = {name: value for name, value in options.items() if name == "filters"}
        validation = {**self.options, **{name: value for name, value in options.items() if name not in sections}}
        # Validate as when read from a file, with the field aliases.
        raw = self.lake.replication.model_dump(mode="json", by_alias=True) | {"validation": validation, **sections}
        raw["source"] |= self.source
        return validate(Replication.model_validate(raw), 0, self.lake.hi, "run")

    def window(self, *, key: int = 9001, mirrored: bool = True) -> None:
        w = self.shop.workload
        for each in range(key, key + 3):
            w.begin().insert("shop", "item", id=each, name=f"item {each}", n=1).commit()
        self.change(key + 1, n=5)
        w.begin().delete("shop", "item", **self.row(key + 2)).commit()
        self.apply(mirrored=mirrored)

    def row(self, key: int) -> dict[str, str | None]:
        return next(row for row in self.shop.rows("item") if row["id"] == str(key))

    def change(self, key: int, **values: object) -> None:
        self.shop.workload.begin().update("shop", "item", self.row(key), **values).commit()

    def apply(self, *, mirrored: bool = True) -> None:
        self.lake.land(mirrored=mirrored)
        self.shop.refill()
        set_checkpoint(self.shop.server, self.lake.hi)

    def errors(self) -> list[tuple[str, str, str, str]]:
        return [(one.status, one.table, one.key, one.kind) for one in ValidationLedger(self.lake.paths).list_entries()]
