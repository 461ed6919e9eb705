"""Random histories in files: whatever is killed and however the runs are cut, the target reaches the model's state.

A failure names its seed. The same seed gives the same history, runs and kills (except for the exact timing of kills in
concurrent threads).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest
from support.drainerfiles import (
    Written,
    column_bytes,
    column_of,
    ddl_bytes,
    event_bytes,
    transaction_bytes,
    write_files,
)
from support.mariadb import MariaDb, execute, rows
from support.reparation import drop_files_before, run, write_index
from support.windows import Crash, crashing

pytestmark = [pytest.mark.mariadb, pytest.mark.soak_on("mysql")]

TABLES = ("CREATE TABLE app.t (id BIGINT PRIMARY KEY, v VARCHAR(40))", "CREATE TABLE app.log (line VARCHAR(40))")
TEXTS = ("a", "it's", "\\", '"; DROP', "🐬", "ä\n", "%s", " x ", "0x41", "NULL")
ID, V, LINE = column_of("id", 8), column_of("v", 15), column_of("line", 15)
SEEDS = [0, 1, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(2, 40))]


@dataclass(frozen=True)
class State:
    """The source's rows at `ts`; `wide`: the table has the column w with its default value."""

    ts: int
    table: tuple[tuple[int, str], ...]
    lines: tuple[str, ...]
    wide: bool


@dataclass
class History:
    """Transactions and DDL of app.t, which has a key, and app.log, which has none, with the resulting states."""

    draw: Random
    ts: int = 1000
    written: list[Written] = field(default_factory=list)
    states: list[State] = field(default_factory=list)
    table: dict[int, str] = field(default_factory=dict)
    lines: Counter[str] = field(default_factory=Counter)
    wide: bool = False

    def add_commit(self) -> None:
        """Add one commit."""
        self.ts += self.draw.choice((1, 7, 1000))
        if self.draw.random() < 0.2:
            for text in self._draw_ddl():
                self.ts += 1
                self.written.append(Written(self.ts, ddl_bytes(self.ts, "app", text)))
        else:
            events = [event for _ in range(self.draw.choice((1, 2, 9))) for event in self._draw_events()]
            self.written.append(Written(self.ts, transaction_bytes(self.ts, events)))
        held = tuple(sorted(self.lines.elements()))
        self.states.append(State(self.ts, tuple(sorted(self.table.items())), held, self.wide))

    def _draw_events(self) -> list[bytes]:
        draw, text = self.draw, self.draw.choice(TEXTS)
        kind = draw.choice(("put", "put", "change", "move", "delete", "swap", "log", "log", "unlog"))
        if kind == "log":
            self.lines[text] += 1
            return [event_bytes("app", "log", "I", [column_bytes(LINE, text)])]
        if kind == "unlog" and self.lines:
            gone = draw.choice(sorted(self.lines))
            self.lines -= Counter([gone])
            return [event_bytes("app", "log", "D", [column_bytes(LINE, gone)])]
        free = draw.choice([key for key in range(-9, 30) if key not in self.table])
        if len(self.table) < 2 or kind in ("put", "unlog"):
            return [self._put(free, text)]
        key, other = draw.sample(sorted(self.table), 2)
        if kind == "delete":
            return [self._delete(key)]
        if kind == "swap":
            # through a third key, as a source with a unique key must do it
            return [self._change(key, free), self._change(other, key), self._change(free, other)]
        return [self._change(key, free if kind == "move" else key, text)]

    def _put(self, key: int, text: str) -> bytes:
        self.table[key] = text
        return event_bytes("app", "t", "I", [column_bytes(ID, str(key)), column_bytes(V, text)])

    def _delete(self, key: int) -> bytes:
        text = self.table.pop(key)
        return event_bytes("app", "t", "D", [column_bytes(ID, str(key)), column_bytes(V, text)])

    def _change(self, key: int, to: int, text: str | None = None) -> bytes:
        old = self.table.pop(key)
        new = self.table[to] = old if text is None else text
        sides = [column_bytes(ID, str(key), str(to), update=True), column_bytes(V, old, new, update=True)]
        return event_bytes("app", "t", "U", sides)

    def _draw_ddl(self) -> list[str]:
        kind = self.draw.choice(("widen", "rename", "truncate", "make", "index", "empty"))
        if kind == "widen":
            self.wide = not self.wide
            return ["ALTER TABLE `t` ADD COLUMN `w` INT DEFAULT 5" if self.wide else "ALTER TABLE `t` DROP COLUMN `w`"]
        if kind == "rename":
            return ["RENAME TABLE `t` TO `u`", "ALTER TABLE `u` RENAME TO `t`"]
        if kind == "empty":
            self.lines.clear()
            return ["TRUNCATE TABLE `log`"]
        if kind == "index":
            return ["CREATE INDEX `i` ON `t` (`v`)", "DROP INDEX `i` ON `t`"]
        self.table.clear()
        if kind == "truncate":
            return ["TRUNCATE `t`"]
        self.wide = False
        return ["DROP TABLE `t`", "CREATE TABLE `t` (`id` BIGINT PRIMARY KEY,`v` VARCHAR(40))"]


def read_target(server: MariaDb, ts: int) -> State:
    """The rows of the target."""
    found = rows(server, "SELECT * FROM app.t ORDER BY id")
    wide = rows(server, "SELECT COUNT(*) FROM information_schema.columns WHERE table_schema = 'app'"
                " AND table_name = 't' AND column_name = 'w'") == [(1,)]  # fmt: skip
    assert {row[2:] for row in found} <= {(5,) if wide else ()}
    lines = sorted(line for (line,) in rows(server, "SELECT line FROM app.log"))
    return State(ts, tuple((key, text) for key, text, *_ in found), tuple(lines), wide)


@pytest.mark.parametrize("seed", SEEDS)
def test_runs_cut_and_killed_anywhere_give_the_state_of_each_end(
    empty_server: MariaDb, tmp_path: Path, seed: int
) -> None:  # S0-01, R-17
    history = History(Random(seed))
    draw = history.draw
    for _ in range(draw.choice((5, 30, 60))):
        history.add_commit()
    execute(empty_server, "CREATE DATABASE app CHARACTER SET utf8mb4 COLLATE utf8mb4_bin", *TABLES)
    write_files(tmp_path, history.written, draw.choice((1, 300, 5000)))
    indexed = draw.random() < 0.5
    if indexed:
        write_index(tmp_path, lo=999)
    ends = sorted(draw.sample(history.states, min(4, len(history.states))), key=lambda state: state.ts)
    for wanted in ends:
        while True:
            choice = {"mode": draw.choice(("atomic", "parallel")), "window_rows": draw.choice((1, 4, 1000))}
            try:
                run(empty_server, tmp_path, crashing(draw, 0.08), stop_tso=wanted.ts, worker_count=3, **choice)
            except Crash:
                continue
            break
        assert read_target(empty_server, wanted.ts) == wanted, f"seed {seed}"
        if indexed:
            drop_files_before(tmp_path, wanted.ts)
