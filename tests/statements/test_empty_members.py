"""An ENUM or SET with the member '': the value without a member stays another value, wherever it goes."""

from __future__ import annotations

import contextlib

import pyarrow as pa
import pytest
from support.mariadb import MariaDb, execute, rows
from support.tabledefs import col, key, primary, table

from binlake.changes.ordered.forms import RowForms
from binlake.config.servers import TargetSection
from binlake.feed.encoding import compute_member_numbers, show_members
from binlake.repair.chunks import ChunkPlan, Cuts, hash_texts, render_hash_sql
from binlake.repair.serverside import SqlTable
from binlake.rows.codec.encode import parse_flat_number
from binlake.rows.codec.lanes import format_enums
from binlake.rows.codec.values import format_enum, format_set
from binlake.rows.schema import ColumnInfo, TableDef
from binlake.rows.schema import mysqltypes as t
from binlake.statements import TableStatements, build_images_from_rows
from binlake.target import TargetSession

NAMES = ("a", "", "0")
SQL = "CREATE TABLE d.t (e ENUM('a','','0') NOT NULL, s SET('a','','0') NOT NULL, v INT, PRIMARY KEY (e, s))"
FIRST = "CREATE TABLE d.t (e ENUM('','a') NOT NULL, s SET('','a','b') NOT NULL, v INT, PRIMARY KEY (e, s))"


def define(enum: tuple[str, ...], members: tuple[str, ...], *, keyed: bool = True) -> TableDef:
    return table(
        "t",
        col("e", t.ENUM, not_null=True, elems=enum),
        col("s", t.SET, not_null=True, elems=members),
        col("v"),
        keys=(primary("e", "s"),) if keyed else (key("i", "v", unique=False),),
    )


def find(made: TableDef, name: str) -> ColumnInfo:
    column = made.find_column(name)
    assert column is not None
    return column


def list_images(made: TableDef) -> list[dict[str, str | None]]:
    """A row for each pair of values."""
    enum, members = find(made, "e").elems, find(made, "s").elems
    pairs = [(e, s) for e in range(len(enum) + 1) for s in range(1 << len(members))]
    return [{"e": format_enum(e, enum), "s": format_set(s, members), "v": str(100 * e + s)} for e, s in pairs]


@pytest.mark.parametrize("names", [NAMES, ("", "a"), ("a", "b"), ("0", "", "00")])
def test_each_value_has_its_own_text(names: tuple[str, ...]) -> None:
    made = define(names, names)
    e, s = find(made, "e"), find(made, "s")
    enums = [format_enum(value, names) for value in range(len(names) + 1)]
    sets = [format_set(value, names) for value in range(1 << len(names))]
    for column, texts in ((e, enums), (s, sets)):
        assert len(set(texts)) == len(texts)
        assert [parse_flat_number(column, text) for text in texts] == list(range(len(texts)))
        # canal-json, open-protocol, pb and slave binlogs have numbers
        assert compute_member_numbers(column, pa.array(texts)).to_pylist() == list(range(len(texts)))
    assert format_enums(pa.array(range(len(enums))).to_numpy().astype("u8"), names).to_pylist() == enums
    # Avro, Debezium and CSV have texts.
    assert show_members(e, pa.array(enums)).to_pylist() == ["", *names]
    assert show_members(s, pa.array(sets)).to_pylist() == [("" if text == "," else text) for text in sets]


@pytest.mark.mariadb
@pytest.mark.parametrize(("create", "enum", "members"), [(SQL, NAMES, NAMES), (FIRST, ("", "a"), ("", "a", "b"))])
def test_target_stores_finds_and_verifies_each_value(
    create: str, enum: tuple[str, ...], members: tuple[str, ...], empty_server: MariaDb
) -> None:
    made = define(enum, members)
    images = list_images(made)
    everything = build_images_from_rows(images, ["e", "s", "v"])
    execute(empty_server, "CREATE DATABASE d CHARACTER SET utf8mb4", create)
    target = TargetSection(host="127.0.0.1", port=empty_server.port, user=empty_server.user, db_type=empty_server.name)
    with contextlib.closing(TargetSession(target)) as session:
        out = TableStatements(made, 0, dialect=empty_server.name, alike=True)
        for batch in out.render_writes(everything):
            for sql in batch.sql:
                session.execute(sql)
            assert session.fetch_value(batch.verify_sql) == len(images)
        assert rows(empty_server, "SELECT COUNT(*) FROM d.t WHERE 100 * e + s = v") == [(len(images),)]
        read = SqlTable(session, ChunkPlan(made, empty_server.name, Cuts()), [("d", "t")])
        keys = [(image["e"], image["s"]) for image in images]
        assert sorted(map(str, read.read_rows_by_key(keys))) == sorted(map(str, images))
        hashed = dict(session.fetch_rows(f"SELECT v, {render_hash_sql(made.row_columns)} FROM d.t"))
        texts = {name: column.to_pylist() for name, column in everything.items()}
        assert [hashed[int(str(image["v"]))] for image in images] == hash_texts(made.row_columns, texts).tolist()
        deletes = [
            batch for image in images for batch in out.render_deletes(build_images_from_rows([image], ["e", "s"]))
        ]
        assert [session.execute(batch.sql[0]) for batch in deletes] == [1] * len(images)
        for forms in (
            RowForms(made, empty_server.name),
            RowForms(define(enum, members, keyed=False), empty_server.name),
        ):
            assert [session.execute(forms.insert(image).text) for image in images] == [1] * len(images)
            assert [session.execute(forms.delete(image).text) for image in images] == [1] * len(images)
