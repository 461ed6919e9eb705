"""Which messages share a file: by folder and definition, in whole transactions, up to about the size limit."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from support.feedmessages import Change, commit_ts, messages_of

from binlake.feed.files.datafiles import ROW_BYTES, Cutter
from binlake.feed.files.layout import TableVersion, Versions

DAY = 86_400
KEY = len(b"k")
V0, V1 = commit_ts(0), commit_ts(100)
VERSIONS = [
    TableVersion("shop", "item", V0, 0),
    # Rows that ran ahead of the DDL have its definition.
    TableVersion("shop", "item", V1, commit_ts(90)),
    TableVersion("shop", "log", V0, 0),
]


def files(
    changes: Sequence[Change] | pa.Table, size: int = 1 << 20, separator: str = "day"
) -> list[tuple[str, list[str]]]:
    """Folder and values of each file, in the order of closing."""
    cutter = Cutter(Versions(VERSIONS), separator, size)
    table = changes if isinstance(changes, pa.Table) else messages_of(changes)
    pieces = [*cutter.add(table), *cutter.finish()]
    return [
        (piece.group.folder, [one.decode() for one in piece.messages.column("value").to_pylist()]) for piece in pieces
    ]


def test_each_day_and_definition_has_a_folder() -> None:
    changes = [Change(second, str(second)) for second in (1, 89, 90, 101, DAY - 1, DAY, 2 * DAY)]
    assert files(changes) == [
        (f"shop/item/{V0}/2026-01-01", ["1", "89"]),
        (f"shop/item/{V1}/2026-01-01", ["90", "101", str(DAY - 1)]),
        (f"shop/item/{V1}/2026-01-02", [str(DAY)]),
        (f"shop/item/{V1}/2026-01-03", [str(2 * DAY)]),
    ]
    assert files(changes, separator="none") == [
        (f"shop/item/{V0}", ["1", "89"]),
        (f"shop/item/{V1}", ["90", "101", str(DAY - 1), str(DAY), str(2 * DAY)]),
    ]


def test_each_table_has_a_folder_and_its_messages_keep_their_order() -> None:
    changes = [Change(second, f"{second}{table}", table) for second in (1, 2, 3) for table in ("log", "item")]
    assert files(changes) == [
        (f"shop/log/{V0}/2026-01-01", ["1log", "2log", "3log"]),
        (f"shop/item/{V0}/2026-01-01", ["1item", "2item", "3item"]),
    ]


def test_row_from_before_the_first_definition_uses_that_one() -> None:
    cutter = Cutter(Versions([TableVersion("shop", "item", V1, V1)]), "none", 1 << 20)
    assert list(cutter.add(messages_of([Change(1, "early")]))) == []
    (piece,) = cutter.finish()
    assert piece.group.folder == f"shop/item/{V1}"
    assert cutter.list_folders() == [f"shop/item/{V1}"]


def test_file_ends_after_the_transaction_that_fills_it() -> None:
    values = ["a" * 10, "b" * 10, "c" * 10, "d" * 10]
    # The first two are one transaction.
    changes = [Change(second, value) for second, value in zip((1, 1, 2, 3), values, strict=True)]
    row = KEY + 10 + ROW_BYTES

    def sizes(size: int) -> list[int]:
        return [len(own) for _, own in files(changes, size)]

    assert sizes(1) == [2, 1, 1]
    assert sizes(row) == [2, 1, 1]
    assert sizes(row + 1) == [2, 2]
    assert sizes(2 * row) == [2, 2]
    assert sizes(2 * row + 1) == [3, 1]
    assert sizes(3 * row + 1) == [4]


def test_transactions_with_one_commit_ts_may_be_separated() -> None:
    table = messages_of([Change(1, "a"), Change(1, "b")])
    starts = pa.array([commit_ts(0), commit_ts(0) + 1])
    table = table.set_column(table.schema.get_field_index("start_ts"), "start_ts", starts)
    assert [own for _, own in files(table, 1)] == [["a"], ["b"]]


def test_keys_and_values_count_for_the_size() -> None:
    table = messages_of([Change(1, ""), Change(2, ""), Change(3, "")])
    keys = pa.array([b"k" * 50, b"k" * 50, b"k"])
    values = pa.array([None, b"v" * 50, b"v"], pa.binary())
    table = table.set_column(table.schema.get_field_index("key"), "key", keys)
    table = table.set_column(table.schema.get_field_index("value"), "value", values)
    # One byte more than the deletion has.
    cutter = Cutter(Versions(VERSIONS), "day", 50 + ROW_BYTES + 1)
    pieces = [*cutter.add(table), *cutter.finish()]
    assert [piece.messages.num_rows for piece in pieces] == [2, 1]


def test_messages_with_other_schemas_are_in_separate_files() -> None:
    table = messages_of([Change(1, "a"), Change(2, "b")])
    for name in ("key_schema", "value_schema"):
        own = table.set_column(table.schema.get_field_index(name), name, pa.array(["one", "two"]))
        assert [values for _, values in files(own)] == [["a"], ["b"]]
