"""A dump as statements, without a server: where objects are created, which rows share a transaction, refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.dumps import put

from binlake.config import Replication
from binlake.errors import ConfigError
from binlake.mysqlbinlog.dumpfolder import read_dump_folder
from binlake.rules import Rules
from binlake.statements.batch import UNCHECKED, Phase, StatementBatch
from binlake.target import dump as statements_module
from binlake.target.dump import DumpStatements

BASE = 463_267_587_686_400_000


def put_table(folder: Path, name: str, columns: str, *rows: str) -> None:
    """Write a table's schema file, and a file of statements for each of `rows`."""
    put(
        folder / f"{name}-schema.sql",
        f"/*!40101 SET NAMES binary*/;\nCREATE TABLE `{name.partition('.')[2]}` ({columns});\n",
    )
    for number, text in enumerate(rows):
        put(folder / f"{name}.{number:09}.sql", text)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for db in ("shop", "bare", "log"):
        put(tmp_path / f"{db}-schema-create.sql", f"CREATE DATABASE `{db}` DEFAULT CHARACTER SET utf8mb4;\n")
    put_table(tmp_path, "shop.a", "`id` int, `v` varchar(9)", insert("a", "(1,'x'),(2,'')"), insert("a", "(3,'y')"))
    put_table(tmp_path, "log.e", "`e` enum('p','q')", insert("e", "('p'),(NULL)") + insert("e", "(''),('q')"))
    return tmp_path


def insert(table: str, rows: str) -> str:
    return f"INSERT INTO `{table}` VALUES\n{rows};\n"


def build_dump(folder: Path, *, new_collation: bool = True, dialect: Any = "mariadb", **config: Any) -> DumpStatements:
    raw = {key.replace("_", "-"): value for key, value in config.items()}
    rules = Rules.of(Replication.model_validate({"name": "demo", "lake": {"path": "x"}, **raw}))
    return DumpStatements(read_dump_folder(folder), BASE, rules, dialect, new_collation=new_collation)


def rows_of(found: DumpStatements) -> list[StatementBatch]:
    return list(found.read_batches(found.list_segments()[-1].number, Phase.WRITE))


def test_each_database_and_then_each_table_is_created_in_its_own_segment(folder: Path) -> None:  # S0-01
    first, *others = build_dump(folder).list_segments()
    assert (first.number, first.end_ts, first.schema_version, first.ddl, first.rows, first.bytes) == (
        0,
        0,
        0,
        None,
        0,
        0,
    )
    assert [(one.number, one.end_ts, one.schema_version, one.touched) for one in others] == [
        (1, 0, 0, (("bare", ""),)),
        (2, 0, 0, (("log", ""),)),
        (3, 0, 0, (("shop", ""),)),
        (4, 0, 0, (("log", "e"),)),
        (5, BASE, 0, (("shop", "a"),)),
    ]
    for one in others:
        assert one.ddl is not None
        assert (one.ddl_commit_ts, one.rows_ahead, one.repeatable) == (BASE, True, True)
        assert (one.ddl.segment, one.ddl.phase, one.ddl.batch, one.ddl.kind) == (one.number, Phase.DDL, 0, "ddl")
        assert (one.ddl.verify_sql, one.ddl.verify_rows, one.ddl.rows) == ("", 0, 0)
        assert one.ddl.expect == (UNCHECKED,) * len(one.ddl.sql)
        assert (one.ddl.db, one.ddl.table) == ("", one.touched[0][1])
    texts = [one.ddl.sql[-1] for one in others if one.ddl is not None]
    assert texts[0].startswith("CREATE DATABASE IF NOT EXISTS `bare`")
    assert texts[4].startswith("CREATE TABLE IF NOT EXISTS `a` (")
    assert [one.ddl.sql[:-1] for one in others if one.ddl is not None] == [(), (), (), ("USE `log`",), ("USE `shop`",)]
    assert len({one.ddl.digest for one in others if one.ddl is not None}) == 5


def test_existing_objects_are_not_created_again_whatever_the_text(folder: Path) -> None:
    for text in ("CREATE TABLE IF NOT EXISTS `a`", "create table `a`"):
        put(folder / "shop.a-schema.sql", f"{text} (`t` text COMMENT 'CREATE TABLE x');\n")
        last = build_dump(folder).list_segments()[-1].ddl
        assert last is not None
        [made_by] = (one for one in last.sql if one.upper().startswith("CREATE"))
        assert made_by.upper().startswith("CREATE TABLE IF NOT EXISTS `A` (")
        assert "'CREATE TABLE x'" in made_by


def test_database_without_tables_is_created_if_it_is_replicated(folder: Path) -> None:
    def databases(**config: Any) -> list[str]:
        touched = [one.touched[0] for one in build_dump(folder, **config).list_segments()[1:]]
        return [db for db, table in touched if not table]

    assert databases() == ["bare", "log", "shop"]
    assert databases(filter={"replicate-do-db": ["log"]}) == ["log"]
    # The database of a replicated table is created, even if the database itself is not replicated.
    only_a_table = {"filter": {"replicate-do-table": [{"db-name": "shop", "tbl-name": "a"}]}}
    assert databases(**only_a_table) == ["shop"]
    # Before the base, the target has nothing.
    assert [one.end_ts for one in build_dump(folder, **only_a_table).list_segments()] == [0, 0, BASE]


def test_routes_rename_tables_and_databases(folder: Path) -> None:  # S4-03
    route = {"schema-pattern": "shop", "table-pattern": "a", "target-schema": "all", "target-table": "t"}
    found = build_dump(folder, routes=[{"schema-pattern": "shop", "target-schema": "x"}, route])
    assert found.list_target_names() == [("log", "e"), ("all", "t")]
    plans = found.list_segments()
    assert [one.touched[0] for one in plans[3:]] == [("x", ""), ("log", "e"), ("all", "t")]
    text = plans[-1].ddl
    assert text is not None
    assert "`all`.`t`" in text.sql[-1]
    assert "`x`" in str(plans[3].ddl)
    assert [(one.db, one.table) for one in rows_of(found)] == [("log", "e"), ("all", "t"), ("all", "t")]
    assert rows_of(found)[1].sql == ("INSERT INTO `all`.`t` VALUES\n(1,'x'),(2,'')",)


def test_binary_collations_without_padding_follow_new_collation(folder: Path) -> None:
    put(folder / "shop.a-schema.sql", "CREATE TABLE `a` (`v` varchar(9)) DEFAULT CHARSET=utf8mb4;\n")

    def text(new_collation: bool) -> str:
        plan = build_dump(folder, new_collation=new_collation).list_segments()[-1].ddl
        assert plan is not None
        return plan.sql[-1]

    assert "nopad" not in text(True)
    assert "COLLATE utf8mb4_nopad_bin" in text(False)


def test_rows_come_once_and_only_in_the_last_segment(folder: Path) -> None:
    found = build_dump(folder)
    last = found.list_segments()[-1].number
    for segment in range(last + 2):
        for phase in Phase:
            if (segment, phase) != (last, Phase.WRITE):
                assert list(found.read_batches(segment, phase)) == []
    batches = rows_of(found)
    assert [(one.segment, one.phase, one.batch, one.db, one.table, one.kind) for one in batches] == [
        (last, Phase.WRITE, number, *name, "insert") for number, name in enumerate([("log", "e"), *[("shop", "a")] * 2])
    ]
    assert [(one.expect, one.rows, one.verify_sql, one.verify_rows) for one in batches] == [
        ((2, 2), 4, "", 0), ((2,), 2, "", 0), ((1,), 1, "", 0),
    ]  # fmt: skip
    assert len({one.digest for one in batches}) == 3
    assert rows_of(build_dump(folder)) == batches


def test_error_value_of_an_enum_is_accepted_only_for_enum_columns(folder: Path) -> None:
    batch = rows_of(build_dump(folder))[0]
    plain, odd = batch.sql
    assert plain == "INSERT INTO `log`.`e` VALUES\n('p'),(NULL)"
    assert odd.endswith("INSERT INTO `log`.`e` VALUES\n(''),('q')")
    assert odd != "INSERT INTO `log`.`e` VALUES\n(''),('q')"
    # In a table without ENUM an empty string is an ordinary value.
    assert rows_of(build_dump(folder))[1].sql == ("INSERT INTO `shop`.`a` VALUES\n(1,'x'),(2,'')",)


def test_bytes_that_are_not_text_stay_unchanged(folder: Path) -> None:
    (folder / "shop.a.000000000.sql").write_bytes(b"INSERT INTO `a` VALUES (1,_binary '\xe9\xff');\n")
    assert rows_of(build_dump(folder))[1].sql[0].encode("utf-8", "surrogateescape").endswith(b"(1,_binary '\xe9\xff')")


def test_small_statements_share_a_transaction_and_a_large_one_is_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [insert("a", f"({n},'{'x' * length}')") for n, length in enumerate([5, 5, 5, 90, 5, 5, 5, 5])]
    put(folder / "shop.a.000000000.sql", "".join(texts))
    small = len(" VALUES\n(1,'xxxxx')")
    wanted = [text.replace("`a`", "`shop`.`a`", 1).removesuffix(";\n") for text in texts]
    for most, sizes in ((3 * small, [3, 1, 3, 1]), (3 * small - 1, [2, 1, 1, 2, 2]), (0, [1] * 8), (1 << 20, [8])):
        monkeypatch.setattr(statements_module, "_BATCH_BYTES", most)
        batches = rows_of(build_dump(folder))
        assert [one.batch for one in batches] == list(range(len(batches)))
        # Transactions do not span files.
        of_file = [one for one in batches if one.table == "a"][:-1]
        assert [len(one.sql) for one in of_file] == sizes, most
        assert [text for one in of_file for text in one.sql] == wanted


def test_row_count_and_digest_cover_exactly_the_loaded_rows(folder: Path) -> None:
    rows, digest = build_dump(folder).check_rows(1 << 20)
    assert rows == 7
    assert build_dump(folder).check_rows(1 << 20) == (7, digest)
    changes = {
        "shop.a.000000001.sql": insert("a", "(4,'y')"),
        "shop.a-schema.sql": "CREATE TABLE `a` (`id` bigint, `v` varchar(9));\n",
        "bare-schema-create.sql": "CREATE DATABASE `bare` DEFAULT CHARACTER SET latin1;\n",
        "shop.a.000000009.sql": insert("a", "(9,'y')"),
    }
    digests = [digest]
    for name, text in changes.items():
        file = folder / name
        former = file.read_text() if file.exists() else None
        put(file, text)
        digests.append(build_dump(folder).check_rows(1 << 20)[1])
        file.unlink()
        if former is not None:
            put(file, former)
    assert len(set(digests)) == 5
    assert build_dump(folder).check_rows(1 << 20) == (7, digest)
    # Tables that are left out are not counted.
    only = build_dump(folder, filter={"replicate-do-db": ["log"]})
    assert only.check_rows(1 << 20)[0] == 4


def test_statement_must_fit_into_a_packet_with_its_overhead(folder: Path) -> None:
    put(folder / "shop.a.000000000.sql", insert("a", f"(1,'{'x' * 700}')"))
    needed = len(f" VALUES\n(1,'{'x' * 700}')") + len("a") + statements_module._HEAD_BYTES
    assert build_dump(folder).check_rows(needed)[0] == 6
    with pytest.raises(ConfigError, match="more than the target accepts in one packet") as error:
        build_dump(folder).check_rows(needed - 1)
    assert error.value.where["file"] == str(folder / "shop.a.000000000.sql")


def test_row_counts_in_the_metadata_are_checked(folder: Path) -> None:
    def metadata(rows_a: int, rows_e: int) -> None:
        put(folder / "metadata", f"[`shop`.`a`]\nrows = {rows_a}\n\n[`log`.`e`]\nrows = {rows_e}\n")

    metadata(3, 4)
    assert build_dump(folder).check_rows(1 << 20)[0] == 7
    metadata(0, 4)
    with pytest.raises(ConfigError, match="does not have the number of rows") as error:
        build_dump(folder).check_rows(1 << 20)
    assert {name: error.value.where[name] for name in ("table", "metadata", "files")} == {
        "table": "shop.a", "metadata": "0", "files": "3",
    }  # fmt: skip
    # A table that is left out may have any number; a table without a data file has zero rows.
    assert build_dump(folder, filter={"replicate-do-db": ["log"]}).check_rows(1 << 20)[0] == 4
    for number in range(2):
        (folder / f"shop.a.{number:09}.sql").unlink()
    assert build_dump(folder).check_rows(1 << 20)[0] == 4


SHARED = [{"schema-pattern": "*", "table-pattern": "*", "target-schema": "all", "target-table": "t"}]


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"routes": SHARED}, "two tables of the dump are routed into one"),
        ({"expression_filter": [{"schema": "shop", "table": "a", "insert-value-expr": "id = 1"}]}, "leave out rows"),
        ({"filters": [{"schema-pattern": "shop", "events": ["insert"], "action": "Ignore"}],
          "filter": {"kept-rows": "replace"}}, "leave out rows"),
        ({"routes": [{"schema-pattern": "shop", "table-pattern": "a", "target-schema": "x", "target-table": "a",
                      "extract-schema": {"schema-regexp": "(.*)", "target-column": "c"}}]}, "leave out rows"),
    ],
    ids=["merging route", "expression filter", "event filter", "extract column"],
)  # fmt: skip
def test_row_rules_that_a_dump_cannot_apply_are_refused(folder: Path, config: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as error:
        build_dump(folder, **config)
    assert error.value.where["tables"] in ("shop.a", "log.e, shop.a")


def test_filters_on_later_changes_do_not_affect_a_dump(folder: Path) -> None:
    rule = {"schema-pattern": "shop", "events": ["delete", "update"], "action": "Ignore"}
    assert len(rows_of(build_dump(folder, filters=[rule], filter={"kept-rows": "replace"}))) == 3


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("shop.a.1.csv", "1,2", "rows in files that are not SQL"),
        ("shop.a-schema.sql", "SET NAMES binary;\n", "no CREATE statement"),
    ],
)
def test_incomplete_or_unsupported_folder_is_refused(folder: Path, file: str, text: str, said: str) -> None:
    put(folder / file, text)
    with pytest.raises(ConfigError, match=said) as error:
        build_dump(folder)
    assert error.value.where["file"] == str(folder / file)


def test_at_most_five_tables_are_named(folder: Path) -> None:
    for number in range(6):
        put_table(folder, f"shop.t{number}", "`id` int")
    rule = {"schema-pattern": "shop", "events": ["insert"], "action": "Ignore"}
    with pytest.raises(ConfigError) as error:
        build_dump(folder, filters=[rule], filter={"kept-rows": "replace"})
    assert error.value.where["tables"] == "shop.a, shop.t0, shop.t1, shop.t2, shop.t3"
