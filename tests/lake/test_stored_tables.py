"""A schema of many tables: what is read and parsed of it follows from the tables that are asked for."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.workload import Workload, integer

from binlake.lake import schemas
from binlake.lake.paths import LakePaths
from binlake.lake.schemas import SchemaHistory, SnapshotTables
from binlake.rows.schema import DdlJob, SchemaState, TableDef
from binlake.rows.schema.state import find_touched
from binlake.rows.schema.tables import READ_TOGETHER

TABLES = 3 * READ_TOGETHER
Job = tuple[int, DdlJob]


class Work:
    """What was parsed and read."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.parsed: list[int] = []
        self.read: list[tuple[int, int]] = []
        parse, read = TableDef.from_json.__func__, SnapshotTables.read_tables

        def count_parsed(cls: type[TableDef], data: Any, *more: Any) -> TableDef:
            self.parsed.append(data["id"])
            return parse(cls, data, *more)

        def count_read(reader: SnapshotTables, first: int, last: int) -> dict[int, str]:
            self.read.append((first, last))
            return read(reader, first, last)

        patch.setattr(TableDef, "from_json", classmethod(count_parsed))
        patch.setattr(SnapshotTables, "read_tables", count_read)


@pytest.fixture
def source() -> Workload:
    made = Workload()
    made.create_database("d")
    for number in range(TABLES):
        made.create_table("d", f"T{number}", [integer("id"), integer("v")], ["id"])
    return made


def list_jobs(source: Workload) -> list[Job]:
    return [(int(job["binlog"]["FinishedTS"]), DdlJob.from_dict(job)) for job in source.jobs]


@pytest.fixture
def begun(source: Workload, tmp_path: Path) -> Iterator[tuple[LakePaths, int]]:
    """A lake whose history begins with the source's tables, and where it begins."""
    jobs, paths = list_jobs(source), LakePaths(str(tmp_path))
    lo = jobs[-1][0]
    SchemaHistory(paths).begin(lo, SchemaState().fold(jobs))
    return paths, lo


def dump(state: SchemaState) -> list[tuple[str, int, str]]:
    return sorted(state.to_rows())


def test_a_table_of_many_is_read_with_the_few_beside_it(
    source: Workload, begun: tuple[LakePaths, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    (paths, lo), wanted = begun, source.table("d", "T200").id
    work = Work(monkeypatch)
    state = SchemaHistory(paths).read_state_at(lo)
    assert (state.version, state.objects, work.parsed, work.read) == (source.version, TABLES + 2, [], [])
    table = state.find("D", "t200")
    assert table is not None
    assert (table.id, table.name) == (wanted, "T200")
    assert state.find_table(wanted) is table
    assert (state.find_table(5), state.find("d", "t")) == (None, None)
    assert work.parsed == [wanted]
    assert len(work.read) == 1
    assert work.read[0][0] <= wanted <= work.read[0][1]


def test_later_windows_read_neither_names_nor_definitions_again(
    source: Workload, begun: tuple[LakePaths, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    (paths, lo), wanted = begun, source.table("d", "T7").id
    first = SchemaHistory(paths, pinned=True).read_state_at(lo).find_table(wanted)
    work = Work(monkeypatch)
    monkeypatch.setattr(SnapshotTables, "read_names", lambda _: pytest.fail("the names are known"))
    later = SchemaHistory(paths, pinned=True).read_state_at(lo + 1)
    again = later.find_table(wanted)
    # A definition lives as long as its window: it is parsed again, from the text that is still here.
    assert again is not first
    assert again is later.find("d", "T7")
    assert (work.parsed, work.read) == ([wanted], [])


def test_a_ddl_costs_its_table(source: Workload, begun: tuple[LakePaths, int], monkeypatch: pytest.MonkeyPatch) -> None:
    (paths, lo), changed = begun, source.table("d", "T100").id
    hi = source.add_column("d", "T100", integer("w"))
    job = DdlJob.from_dict(source.jobs[-1])
    history = SchemaHistory(paths, pinned=True)
    before = history.read_state_at(lo)
    work = Work(monkeypatch)
    after = before.follow(job, hi, before.version)
    was, now = find_touched(before, after)
    assert [len(side.tables[0].columns) for side in (was, now)] == [2, 3]
    assert [len(side.tables) + len(side.databases) for side in (was, now)] == [1, 1]
    assert (work.parsed, len(work.read)) == ([changed, changed], 1)


def test_a_new_snapshot_copies_the_texts_of_tables_that_did_not_change(
    source: Workload, begun: tuple[LakePaths, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    paths, _ = begun
    for change in (
        lambda: source.add_column("d", "T3", integer("w")),
        lambda: source.drop_table("d", "T4"),
        lambda: source.truncate("d", "T5"),
        lambda: source.create_table("d", "new", [integer("id")], ["id"]),
    ):
        change()
    jobs = list_jobs(source)
    expected = dump(SchemaState().fold(jobs))
    monkeypatch.setattr(schemas, "SNAPSHOT_EVERY", 1)
    work = Work(monkeypatch)
    SchemaHistory(paths).append(jobs[-1][0], jobs[-4:])
    assert len(work.parsed) < 10
    found = SchemaHistory(paths).read_state_at(jobs[-1][0])
    assert dump(found) == expected
    assert len(work.parsed) < 10


def test_a_snapshot_of_an_older_version_is_read_and_replaced_by_the_next_window(
    source: Workload, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs, paths = list_jobs(source), LakePaths(str(tmp_path))
    lo, expected = jobs[-1][0], SchemaState().fold(jobs)
    with monkeypatch.context() as older:
        rows = [row for row in expected.to_rows() if row[0] != "names"]
        older.setattr(SchemaState, "to_rows", lambda _: iter(rows))
        SchemaHistory(paths).begin(lo, expected)
    assert dump(SchemaHistory(paths).read_state_at(lo)) == dump(expected)
    SchemaHistory(paths).append(lo + 10, [])
    work = Work(monkeypatch)
    state = SchemaHistory(paths).read_state_at(lo + 10)
    assert state.find("d", "T9") is not None
    assert len(work.parsed) == 1
    SchemaHistory(paths).append(lo + 20, [])
    assert len(work.parsed) == 1


def test_a_task_elsewhere_reads_the_snapshot_itself(source: Workload, begun: tuple[LakePaths, int]) -> None:
    paths, lo = begun
    source.add_column("d", "T1", integer("w"))
    state = SchemaHistory(paths).read_state_at(lo).fold(list_jobs(source)[-1:])
    text = pickle.dumps(state)
    assert len(text) < 6000
    sent = pickle.loads(text)
    assert dump(sent) == dump(state)
    table = sent.find("d", "T1")
    assert table is not None
    assert [column.name for column in table.columns] == ["id", "v", "w"]
