"""The parameters of a workload: read once, checked, frozen. Equal specs and seeds give equal transactions."""

from __future__ import annotations

from dataclasses import dataclass, fields

from binlake.errors import ConfigError
from binlake.testkit.workload.kinds import require_kind

DDL_KINDS = (
    "add-column", "drop-column", "modify-column", "add-index", "drop-index", "truncate", "create-table",
    "drop-table", "rename-table",
)  # fmt: skip
"""DDL kinds that `--ddl` takes."""


@dataclass(frozen=True)
class Faults:
    """Shares (0 to 1) of transactions whose binlogs are lost or late, as with a crashing writer.

    `rollback`: P then R. `lose_commit`, `lose_rollback`: C or R is never sent. `hold`: the transaction stays open
    during some later ones of its writer. `double`: the P is written twice, to another pump if there is one, the C only
    once.
    """

    rollback: float = 0.0
    lose_commit: float = 0.0
    lose_rollback: float = 0.0
    hold: float = 0.0
    double: float = 0.0

    def __post_init__(self) -> None:
        shares = [getattr(self, field.name) for field in fields(self)]
        if min(shares) < 0 or sum(shares) > 1:
            raise ConfigError("shares of faults are 0 to 1, and at most 1 together", where={"faults": self})

    @property
    def orphans(self) -> bool:
        """Whether some P will stay on a pump without its C or R."""
        return self.lose_commit + self.lose_rollback + self.double > 0


@dataclass(frozen=True)
class Spec:
    """The load. Sizes in bytes, `rate` in transactions a second over all writers (0 = as fast as the pumps accept
    them).

    `keyless` of the `tables` have no key. `columns`: kinds, besides the key. `row_bytes`: total width of a row's
    columns of variable size. `txn_rows`: least and most row changes of a transaction. `mix`: weights of insert, update,
    delete. `hot_keys`: rows of each table and writer that get `hot_share` of the updates; 0 = all rows alike.
    `ddl_every`: transactions between two DDLs; 0 = none. Either `transactions` (over all writers) or `seconds` ends it.
    """

    seed: int = 1
    db: str = "workload"
    tables: int = 4
    keyless: int = 1
    columns: tuple[str, ...] = ("int", "varchar", "decimal", "datetime")
    row_bytes: int = 100
    txn_rows: tuple[int, int] = (1, 5)
    mix: tuple[int, int, int] = (50, 40, 10)
    hot_keys: int = 0
    hot_share: float = 0.9
    ddl_every: int = 0
    ddl: tuple[str, ...] = DDL_KINDS
    writers: int = 8
    rate: float = 0.0
    transactions: int = 0
    seconds: float = 0.0
    faults: Faults = Faults()

    def __post_init__(self) -> None:
        for word in self.columns:
            require_kind(word)
        wrong = {
            "give either --transactions or --seconds": (self.transactions > 0) == (self.seconds > 0),
            "tables and writers must be above 0": min(self.tables, self.writers) < 1,
            "keyless must be a number of tables, 0 to all": not 0 <= self.keyless <= self.tables,
            "a table needs at least one column": not self.columns,
            "row-bytes must be above 0": self.row_bytes < 1,
            "txn-rows must be LEAST:MOST, with LEAST at least 1": not 1 <= self.txn_rows[0] <= self.txn_rows[1],
            "mix must be three weights, of insert, update and delete": min(self.mix) < 0 or self.mix[0] < 1,
            "hot-share must be 0 to 1": not 0 <= self.hot_share <= 1,
            "rate, hot-keys and ddl-every cannot be negative": min(self.rate, self.hot_keys, self.ddl_every) < 0,
            f"ddl kinds must be of {', '.join(DDL_KINDS)}": not set(self.ddl) <= set(DDL_KINDS) or not self.ddl,
        }
        for what, is_wrong in wrong.items():
            if is_wrong:
                raise ConfigError(what)

    @property
    def round_size(self) -> int:
        """Transactions of one writer between two DDLs."""
        return max(1, self.ddl_every // self.writers)
