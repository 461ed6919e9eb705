"""CHECK constraints of binlog files and dumps, of which only the text is known, are written in the target's words."""

from __future__ import annotations

from pathlib import Path

import pymysql
import pytest
from support.drainerfiles import Story, write_files
from support.mariadb import MariaDb, execute, rows
from support.reparation import run

from binlake.common.sql import Dialect
from binlake.dialect import DdlText, map_ddl
from binlake.errors import TargetRefused

pytestmark = pytest.mark.mariadb

ACCEPTED, REFUSED = "accepted", "refused"
HEAD = "CREATE TABLE `app`.`c` (`a` INT"
CASES = [
    # statements as TiDB restores or shows them; the value 0, which each check forbids
    ([HEAD + " CHECK(`a`>0) ENFORCED)"], REFUSED),
    ([HEAD + " CHECK(`a`>0) NOT ENFORCED)"], ACCEPTED),
    ([HEAD + ",CONSTRAINT `k` CHECK(`a`>0) ENFORCED, `b` INT DEFAULT 5)"], REFUSED),
    ([HEAD + ",CONSTRAINT `k` CHECK ((`a` > 0)) /*!80016 NOT ENFORCED */, `b` INT)"], ACCEPTED),
    ([HEAD + ",CONSTRAINT `k` CHECK ((`a` <> _utf8mb4'0')))"], REFUSED),
    ([HEAD + ")", "ALTER TABLE `app`.`c` ADD CONSTRAINT `k` CHECK(`a`>0) ENFORCED, ADD COLUMN `b` INT"], REFUSED),
    ([HEAD + ")", "ALTER TABLE `app`.`c` ADD CHECK(`a`>0) NOT ENFORCED"], ACCEPTED),
    ([HEAD + ")", "ALTER TABLE `app`.`c` ADD COLUMN `b` INT DEFAULT 0 CHECK(`b`<5) ENFORCED AFTER `a`"], ACCEPTED),
    ([HEAD + ",CONSTRAINT `k` CHECK(`a`>0) ENFORCED)", "ALTER TABLE `app`.`c` DROP CONSTRAINT `k`"], ACCEPTED),
    ([HEAD + ",CONSTRAINT `k` CHECK(`a`>0) NOT ENFORCED)", "ALTER TABLE `app`.`c` DROP CHECK `k`"], ACCEPTED),
    ([HEAD + ",CONSTRAINT `k` CHECK(`a`>0) ENFORCED)", "ALTER TABLE `app`.`c` ALTER CHECK `k` NOT ENFORCED"], ACCEPTED),
]  # fmt: skip


def dialect_of(server: MariaDb) -> Dialect:
    return "mariadb" if "MariaDB" in rows(server, "SELECT VERSION()")[0][0] else "mysql"


@pytest.mark.parametrize(("texts", "zero"), CASES, ids=range(len(CASES)))
def test_a_check_of_a_text_means_the_same_at_the_target(empty_server: MariaDb, texts: list[str], zero: str) -> None:
    execute(empty_server, "CREATE DATABASE app")
    for text in texts:
        execute(empty_server, *map_ddl(DdlText(5, "app", "c", text), dialect_of(empty_server)).sql)
    execute(empty_server, "INSERT INTO app.c (a) VALUES (1)")
    try:
        execute(empty_server, "INSERT INTO app.c (a) VALUES (0)")
        found = ACCEPTED
    except pymysql.MySQLError:
        found = REFUSED
    assert found == zero


def test_a_check_that_only_its_name_tells_is_refused_for_mariadb() -> None:
    text = DdlText(5, "app", "c", "ALTER TABLE `c` ALTER CHECK `k` ENFORCED")
    with pytest.raises(TargetRefused, match="whose expression is not in the text"):
        map_ddl(text, "mariadb")
    assert map_ddl(text, "mysql").sql[-1] == "ALTER TABLE `c` ALTER CHECK `k` ENFORCED"


def test_reparo_passes_the_checks_of_a_file(empty_server: MariaDb, tmp_path: Path) -> None:
    execute(
        empty_server,
        "CREATE DATABASE app CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
        "CREATE TABLE app.t (id BIGINT PRIMARY KEY, v VARCHAR(20))",
    )
    story = Story().put((1, "", "a"))
    story.ddl("CREATE TABLE `c` (`a` INT CHECK(`a`>0) ENFORCED,CONSTRAINT `k` CHECK(`a`<9) NOT ENFORCED)")
    story.ddl("ALTER TABLE `t` ADD CONSTRAINT `w` CHECK(`id`>0) ENFORCED")
    write_files(tmp_path, story.put((2, "", "b")).written, 100)
    run(empty_server, tmp_path)
    assert rows(empty_server, "SELECT id FROM app.t ORDER BY id") == [(1,), (2,)]
    for refused in ("INSERT INTO app.c VALUES (0)", "INSERT INTO app.t VALUES (-1, 'x')"):
        with pytest.raises(pymysql.MySQLError):
            execute(empty_server, refused)
