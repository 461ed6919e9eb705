"""The cases of DM's tests of shard DDL (shardddl1 to 4, pessimistic and optimistic), as one table.

Two tables of one target run their DDL in the given order; a case lists what the target runs in each mode, or that there
is a conflict. Where a case differs from DM, its comment says so.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import pytest
from support.workload import Workload, integer, text
from test_judging import SHARDS, plan, two_shards
from test_optimistic import alter

from binlake.errors import SchemaError
from binlake.rows.schema import mysqltypes as t
from binlake.testkit.workload.spec import Col

CONFLICT = "conflict"


def add(shard: int, *columns: Col) -> tuple[int, str, tuple[Col, ...]]:
    return shard, "add", columns


def drop(shard: int, *columns: Col) -> tuple[int, str, tuple[Col, ...]]:
    return shard, "drop", columns


def modify(shard: int, *columns: Col) -> tuple[int, str, tuple[Col, ...]]:
    return shard, "modify", columns


@dataclass(frozen=True)
class Case:
    """`steps` of the shards 1 and 2; the statements of the target, without `ALTER TABLE` and its name."""

    steps: tuple[tuple[int, str, tuple[Col, ...]], ...]
    optimistic: tuple[str, ...] | str
    pessimistic: tuple[str, ...] | str


A, B, C = integer("a"), integer("b"), integer("c")
A1, A9 = integer("a", default="1"), integer("a", default="9")
BIG = Col("a", t.LONGLONG, 20)
UNSIGNED = Col("a", t.LONG, 11, unsigned=True)
FLOAT, DOUBLE = Col("a", t.FLOAT, 12, -1), Col("a", t.DOUBLE, 22, -1)
LONG_NAME, REQUIRED = text("name", 100), text("name", not_null=True)
ADD_A, ADD_B, ADD_C, DROP_A = "ADD COLUMN a", "ADD COLUMN b", "ADD COLUMN c", "DROP COLUMN a"

CASES = {
    "add the same": Case((add(1, A), add(2, A)), (ADD_A,), (ADD_A,)),
    "add and drop again on one shard": Case((add(1, A), drop(1, A)), (ADD_A, DROP_A), ()),
    "add and drop on both, one behind the other": Case(
        (add(1, A), add(2, A), drop(1, A), drop(2, A)), (ADD_A, DROP_A), (ADD_A, DROP_A)
    ),
    "add and drop on one, then on the other": Case(
        (add(1, A), drop(1, A), add(2, A), drop(2, A)), (ADD_A, DROP_A, ADD_A, DROP_A), (ADD_A, DROP_A)
    ),
    "drop the same": Case((drop(1, text("name")), drop(2, text("name"))), ("DROP COLUMN name",), ("DROP COLUMN name",)),
    "another column each": Case((add(1, A), add(2, B)), (ADD_A, ADD_B), ()),
    "another column each, then the other one": Case(
        (add(1, A), add(2, B), add(1, B), add(2, A)), (ADD_A, ADD_B), (f"{ADD_B};{ADD_A}",)
    ),
    "several at once": Case((add(1, A, B), add(2, A, B)), (f"{ADD_A},{ADD_B}",), (f"{ADD_A},{ADD_B}",)),
    "several at once, a part of them at first": Case(
        # Pessimistic DM stops here; Binlake's tables are joined once their shapes match.
        (add(1, A), add(2, A, B), add(1, B)),
        (ADD_A, ADD_B),
        (f"{ADD_A};{ADD_B}",),
    ),
    "three at once beside one by one": Case(
        (add(1, A, B, C), add(2, A), add(2, B), add(2, C)),
        (f"{ADD_A},{ADD_B},{ADD_C}",),
        (f"{ADD_A};{ADD_B};{ADD_C}",),
    ),
    "other defaults": Case((add(1, A1), add(2, A9)), CONFLICT, CONFLICT),
    "other types": Case((add(1, A), add(2, text("a"))), CONFLICT, ()),
    "signed and unsigned": Case((add(1, A), add(2, UNSIGNED)), CONFLICT, ()),
    # DM treats FLOAT and DOUBLE as compatible, but the text of a value differs between them.
    "float and double": Case((add(1, FLOAT), add(2, DOUBLE)), CONFLICT, ()),
    "a larger integer": Case(
        (add(1, A), add(2, A), modify(1, BIG), modify(2, BIG)), (ADD_A, "MODIFY COLUMN a"), (ADD_A, "MODIFY COLUMN a")
    ),
    "a smaller integer": Case(
        (add(1, BIG), add(2, BIG), modify(1, A), modify(2, A)), (ADD_A, "MODIFY COLUMN a"), (ADD_A, "MODIFY COLUMN a")
    ),
    "a longer text": Case(
        (modify(1, LONG_NAME), modify(2, LONG_NAME)), ("MODIFY COLUMN name",), ("MODIFY COLUMN name",)
    ),
    "a text becomes a number": Case(
        (modify(1, integer("name")), modify(2, integer("name"))), CONFLICT, ("MODIFY COLUMN name",)
    ),
    "NOT NULL": Case((modify(1, REQUIRED), modify(2, REQUIRED)), ("MODIFY COLUMN name",), ("MODIFY COLUMN name",)),
    "NOT NULL and back on one shard": Case((modify(1, REQUIRED), modify(1, text("name"))), (), ()),
}


def history(case: Case) -> Workload:
    w = two_shards()
    columns = {shard: {column.name: column for column in (integer("id"), text("name"))} for shard in (1, 2)}
    for shard, kind, changed in case.steps:
        own = columns[shard]
        for column in changed:
            if kind == "drop":
                del own[column.name]
            else:
                own[column.name] = replace(column)
        specs = [f"{kind.upper()} COLUMN {c.name if kind == 'drop' else c.sql}" for c in changed]
        alter(w, f"s{shard}", f"t_{shard}", f"ALTER TABLE `t_{shard}` {', '.join(specs)}", *own.values())
    return w


def run_at_target(w: Workload, mode: str) -> tuple[str, ...]:
    """The statements that the target runs after the first four DDL, shortened."""
    texts = [ddl.sql for ddl in plan(w, routes=[SHARDS], shard_mode=mode)[4:] if ddl.decision == "apply"]
    return tuple(
        ";".join(
            ",".join(re.findall(r"(?:ADD|DROP|MODIFY) COLUMN \w+", one.replace("`", ""))) for one in sql.split("; ")
        )
        for sql in texts
    )


@pytest.mark.parametrize("mode", ["optimistic", "pessimistic"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_target_runs_the_expected_statements(case: Case, mode: str) -> None:  # S4-53
    wanted = case.optimistic if mode == "optimistic" else case.pessimistic
    if wanted == CONFLICT:
        with pytest.raises(SchemaError, match=f"shard-mode = {mode}"):
            run_at_target(history(case), mode)
        return
    assert run_at_target(history(case), mode) == wanted


@pytest.mark.parametrize(("gone", "left"), [(1, "name, note"), (2, "")])
def test_columns_of_a_dropped_table_are_named_without_a_shard_mode(gone: int, left: str) -> None:
    w = two_shards()
    alter(w, "s2", "t_2", "ALTER TABLE `t_2` DROP COLUMN name", integer("id"))
    note = text("note")
    alter(w, "s1", "t_1", "ALTER TABLE `t_1` ADD COLUMN note VARCHAR(64)", integer("id"), text("name"), note)
    w.drop_table(f"s{gone}", f"t_{gone}")
    alert = plan(w, routes=[SHARDS], shard_mode="")[-1].alert
    assert alert.startswith(f"s{gone}.t_{gone} shares its target with other tables: its rows stay there")
    assert (f"({left}): drop them at the target" in alert) == bool(left)
