"""Values that only the target has stay with their row, whatever a window does to it and wherever a run stops."""

from __future__ import annotations

import signal
from pathlib import Path
from random import Random

import pytest
from support.children import wait_for_exit
from support.kepthistory import History, window
from support.mariadb import MariaDb, execute, rows
from support.tabledefs import col, key, primary, table
from support.windows import Crash, Window, apply, apply_in_child, at, crashing, signal_me

from binlake.changes.ordered import RowForms
from binlake.config.servers import TargetSection, TargetTable
from binlake.errors import TargetRefused
from binlake.rows.schema import TableDef
from binlake.rows.schema import mysqltypes as t
from binlake.target import apply_window
from binlake.target.definitions.definitions import read_definitions
from binlake.target.definitions.forms import build_expected_form
from binlake.target.definitions.structure import derive_shape
from binlake.target.relay import RelayLog
from binlake.target.relay.files import FolderStorage
from binlake.target.session.session import TargetSession

pytestmark = pytest.mark.mariadb

OWN = (
    "note VARCHAR(9) DEFAULT 'x', ref VARBINARY(4) NULL UNIQUE, price FLOAT DEFAULT 0.1, at TIME(3),"
    " shown VARCHAR(20) AS (CONCAT(note, v)) VIRTUAL"
)
# As in the article: the target has its own key, and the source's primary key is not a key there (S4-26).
OTHER_KEY = f"new_id INT AUTO_INCREMENT PRIMARY KEY, id INT NOT NULL, u INT NOT NULL UNIQUE, v VARCHAR(9), {OWN}"
# Both unique keys of the source, and additional columns.
BOTH_KEYS = f"new_id INT AUTO_INCREMENT UNIQUE, id INT PRIMARY KEY, u INT UNIQUE, v VARCHAR(9), {OWN}"
ROWS = [(1, 1, "a"), (2, 2, "b"), (3, 3, "c"), (4, 4, "d")]


def build_preserved_table(server: MariaDb, target: TargetSection, create: str) -> TableDef:
    """Create app.kept by `create` with ROWS and extra values for each; return the definition that both sides share."""
    execute(server, f"CREATE TABLE app.kept ({create})")
    for id_, u, v in ROWS:
        values = f"{id_}, {u}, '{v}', 'note {id_}', X'0{id_}FF', {id_}.1, '0:0:0.00{id_}'"
        execute(server, f"INSERT INTO app.kept (id, u, v, note, ref, price, at) VALUES ({values})")
    source = table(
        "kept",
        col("id", not_null=True),
        col("u", not_null="u INT NOT NULL" in create),
        col("v", t.VARCHAR, flen=9),
        keys=(primary("id"), key("u", "u")),
        db="app",
    )
    session = TargetSession(target)
    try:
        there = read_definitions(session, [("app", "kept")], target.db_type).tables["app", "kept"]
    finally:
        session.close()
    assert there is not None
    option = TargetTable(db_name="app", tbl_name="kept", preserve=True)
    return derive_shape(build_expected_form(source, target.db_type), there, option, 1).apply_to(source)


def own_values(server: MariaDb, column: str) -> dict[str, object]:
    """The target's extra values, by the text of the column that identifies a row."""
    found = rows(server, f"SELECT {column}, new_id, note, ref, price, at FROM app.kept")
    return {str(name): tuple(values) for name, *values in found}


def source_rows(server: MariaDb) -> list[tuple[str, str | None, str]]:
    found = rows(server, "SELECT id, u, v FROM app.kept ORDER BY id")
    return [(str(id_), None if u is None else str(u), v) for id_, u, v in found]


def assert_rows(server: MariaDb, history: History, before: dict[str, object], column: str) -> None:
    """Assert the source's rows, each with the extra values of its origin; new rows have defaults and unused numbers."""
    wanted = sorted((row["id"], row["u"], row["v"]) for row in history.rows.values())
    assert source_rows(server) == wanted
    kept, found = history.expected_values(before, column), own_values(server, column)
    assert {name: found[name] for name in kept} == kept
    fresh = [found[name] for name in found.keys() - kept.keys()]
    assert {values[1:] for values in fresh} <= {("x", None, 0.1, None)}
    assert not {values[0] for values in fresh} & {values[0] for values in before.values()}
    assert rows(server, "SELECT table_name FROM information_schema.tables WHERE table_name LIKE 'binlake_kept%%'") == []


def move_rows(definition: TableDef) -> History:
    """Swaps of unique values and of keys, a chain, a key taken over, a new row with an old key."""
    history = History(ROWS)
    if definition.find_identity().columns == ("u",):
        history.update(1, v="z").update(2, u=6).update(1, u=2).update(2, u=1).update(3, id=6).delete(4)
        return history.insert(4, 4, "again").update(6, u=5).update(6, u=6)
    history.update(1, u=None).update(2, u=1).update(1, u=2).update(3, id=6).update(2, id=3).delete(4)
    return history.insert(4, 4, "again").insert(2, 6, "new")


@pytest.mark.parametrize("mode", ["atomic", "parallel"])
@pytest.mark.parametrize(("create", "column"), [(OTHER_KEY, "u"), (BOTH_KEYS, "id")], ids=["other key", "both keys"])
def test_extra_values_follow_swapped_moved_and_new_rows(
    server: MariaDb, target: TargetSection, mode: str, create: str, column: str
) -> None:
    # R-12, S4-26, S4-10: the surrogate key is not renumbered, values move with their row
    definition = build_preserved_table(server, target, create)
    assert definition.find_identity().columns == (column,)
    before, history = own_values(server, column), move_rows(definition)
    planned = window(definition, history, 100, 200)
    apply(target.model_copy(update={"mode": mode, "worker_count": 3}), planned)
    assert_rows(server, history, before, column)
    restored = [sql for batch in planned.written if batch.kind == "restore" for sql in batch.sql]
    # Otherwise ON UPDATE CURRENT_TIMESTAMP would overwrite a timestamp that the source has set.
    assert restored and all("t.`v`=t.`v`" in sql for sql in restored)  # noqa: PT018
    # The next window finds no leftovers of this one.
    more = History([])
    more.rows = dict(history.rows)
    before = own_values(server, column)
    more.update(1, v="y").update(6, id=5)
    apply(target, window(definition, more, 200, 300))
    assert_rows(server, more, before, column)


@pytest.mark.parametrize("seed", range(6))
def test_extra_values_survive_random_crashes_and_mode_changes(
    server: MariaDb, target: TargetSection, seed: int
) -> None:
    # an interrupted window is finished in any mode with the values from before its first write
    chance = Random(seed)
    create, column = [(OTHER_KEY, "u"), (BOTH_KEYS, "id")][seed % 2]
    definition = build_preserved_table(server, target, create)
    history = History(ROWS).at_random(chance, 10, nulls=column == "id")
    before = own_values(server, column)
    planned = window(definition, history, 100, 200)
    hook = crashing(chance, 0.06)
    while True:
        mode = target.model_copy(update={"mode": chance.choice(["atomic", "parallel"]), "worker_count": 2})
        try:
            apply(mode, planned, hook)
            break
        except Crash:
            continue
    assert_rows(server, history, before, column)


# The first transaction opens the window; in mode parallel, each batch is one more.
@pytest.mark.parametrize(
    ("mode", "step", "number"),
    [("atomic", "batch", 1), ("parallel", "before_commit", 2), ("parallel", "after_commit", 2),
     ("parallel", "after_commit", 8)],
)  # fmt: skip
def test_extra_values_survive_a_kill_between_copy_and_writes(
    server: MariaDb, target: TargetSection, tmp_path: Path, mode: str, step: str, number: int
) -> None:
    # R-12, invariant 10: kill -9; the retry, in the other mode and from relay files, does not copy half-written values
    definition = build_preserved_table(server, target, BOTH_KEYS)
    before, history = own_values(server, "id"), move_rows(definition)
    planned = window(definition, history, 100, 200)
    chosen = target.model_copy(update={"mode": mode, "worker_count": 1})
    pid = apply_in_child(chosen, planned, at(step, number, signal_me(signal.SIGKILL)))
    assert wait_for_exit(pid) == -signal.SIGKILL
    other = target.model_copy(update={"mode": "atomic" if mode == "parallel" else "parallel"})
    relay = RelayLog(FolderStorage(tmp_path, tmp_path / "shop"), 1 << 20)
    relay.write_ahead(planned.manifest(), planned, lambda: None)
    again = relay.find_window((100, 200), planned.manifest().compute_digest())
    apply_window(other, again.manifest, again)
    assert_rows(server, history, before, "id")


def test_copies_left_by_a_crash_are_dropped_by_the_next_window(server: MariaDb, target: TargetSection) -> None:
    definition = build_preserved_table(server, target, BOTH_KEYS)
    planned = window(definition, move_rows(definition), 100, 200)
    commits = 2  # the opening, then the segment
    pid = apply_in_child(target, planned, at("after_commit", commits, signal_me(signal.SIGKILL)))
    assert wait_for_exit(pid) == -signal.SIGKILL
    assert apply(target, planned).state == "already"
    kept = "SELECT COUNT(*) FROM information_schema.tables WHERE table_name LIKE 'binlake_kept%%'"
    assert rows(server, kept) == [(1,)]
    apply(target, Window(200, 300).put((1, "a")))
    assert rows(server, kept) == [(0,)]


def test_rows_written_in_place_need_no_copy(server: MariaDb, target: TargetSection) -> None:
    # if both sides share one key, columns that a statement does not name keep their values, also in safe mode
    definition = build_preserved_table(server, target, OTHER_KEY)
    history = History(ROWS).update(1, v="y").update(2, id=5).delete(3).insert(3, 3, "z").delete(4).insert(6, 6, "n")
    planned = window(definition, history, 100, 200)
    assert {batch.kind for batch in planned.written} == {"delete", "upsert"}
    before = own_values(server, "u")
    apply(target, planned)
    assert_rows(server, history, before, "u")


def test_mode_ordered_keeps_extra_values_outside_safe_mode(server: MariaDb, target: TargetSection) -> None:
    # an UPDATE names the source's columns only, even for a moved key
    definition = build_preserved_table(server, target, OTHER_KEY)
    before, history = own_values(server, "u"), History(ROWS).update(1, v="z").update(2, u=6).update(3, id=5)
    forms = RowForms(definition, target.db_type)
    for event in history.events:
        before_image, after_image = event.require_images()
        execute(server, forms.update(before_image or {}, after_image or {}).sql)
    assert_rows(server, history, before, "u")


def test_row_refused_by_the_targets_own_key_fails_the_window(server: MariaDb, target: TargetSection) -> None:
    # the presence check and the server's own check apply to every statement form
    definition = build_preserved_table(server, target, OTHER_KEY)
    execute(server, "ALTER TABLE app.kept ADD UNIQUE (v)")
    with pytest.raises(TargetRefused, match="Duplicate entry"):
        apply(target, window(definition, History(ROWS).update(1, v="b"), 100, 200))
