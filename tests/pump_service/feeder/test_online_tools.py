"""Tables of gh-ost and pt-online-schema-change are recognised by what the tools do, never by their names alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from structlog.testing import capture_logs
from support.followed import COPY, Followed

from binlake.mysqlbinlog.model import Flavor
from binlake.rows.schema import Action
from deploy.local.mariadb import MariaDb

pytestmark = pytest.mark.mariadb

CHANGELOG = (
    "create /* gh-ost */ table `shop`.`_t_ghc` (id bigint unsigned auto_increment, last_update timestamp not null"
    " DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP, hint varchar(64) charset ascii not null,"
    " value varchar(4096) charset ascii not null, primary key(id), unique key hint_uidx(hint))"
)
GHOST = (
    CHANGELOG,
    "create /* gh-ost */ table `shop`.`_t_gho` like `shop`.`t`",
    "alter /* gh-ost */ table `shop`.`_t_gho` add w int default 7, modify v varchar(20)",
)
PT = (
    "CREATE TABLE `shop`.`_t_new` (id INT NOT NULL, v VARCHAR(9), PRIMARY KEY (id))",
    "ALTER TABLE `shop`.`_t_new` ADD COLUMN w INT DEFAULT 7, MODIFY v VARCHAR(20)",
)
TRIGGERS = (
    "CREATE TRIGGER `pt_osc_shop_t_del` AFTER DELETE ON `shop`.`t` FOR EACH ROW"
    " DELETE IGNORE FROM `shop`.`_t_new` WHERE `shop`.`_t_new`.`id` <=> OLD.`id`",
    "CREATE TRIGGER `pt_osc_shop_t_ins` AFTER INSERT ON `shop`.`t` FOR EACH ROW"
    " REPLACE INTO `shop`.`_t_new` (`id`, `v`) VALUES (NEW.`id`, NEW.`v`)",
)


@pytest.fixture(params=list(Flavor), ids=lambda flavor: str(flavor.value))
def followed(request: pytest.FixtureRequest) -> Iterator[Followed]:
    """A source with the table `t`."""
    server: MariaDb = request.getfixturevalue("mariadb" if request.param is Flavor.MARIADB else "mysql")
    server.wipe()
    copy = Followed(server, request.param)
    copy.run("CREATE DATABASE shop", db="")
    copy.run("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(9))")
    yield copy
    copy.close()


def list_tables(followed: Followed, db: str) -> set[str]:
    database = followed.described_database(db)
    assert database is not None
    return {table.name for table in database.tables}


def assert_one_alter(followed: Followed, before: int) -> None:
    """The copy has the source's new `t`, altered in place, and nothing of the tool."""
    source, target = followed.described("shop", "t"), followed.described(COPY + "shop", "t")
    assert source is not None
    assert target is not None
    assert replace(source, db="", create="") == replace(target, db="", create="")
    table = followed.catalog.find_table("one", "shop", "t")
    assert table is not None
    assert table.id == before
    assert list_tables(followed, COPY + "shop") == {"t"}
    altered = [change for change in followed.changes if change.version and change.body["table_id"] == before]
    actions = [Action(change.body["type"]) for change in altered]
    assert actions == [Action.CREATE_TABLE, Action.MULTI_SCHEMA_CHANGE]


def find_id(followed: Followed) -> int:
    table = followed.catalog.find_table("one", "shop", "t")
    assert table is not None
    return table.id


def test_a_swap_of_gh_ost_is_one_alter_at_the_target(followed: Followed) -> None:
    before = find_id(followed)
    with capture_logs() as logged:
        followed.run(*GHOST)
    left_out = [one["table"] for one in logged if one["event"] == "online_ddl_table_left_out"]
    assert sorted(set(left_out)) == ["shop._t_ghc", "shop._t_gho"]
    followed.restarted()
    followed.run("create /* gh-ost */ table `shop`.`_t_del` (id int primary key) comment='ghost-cut-over-sentry'")
    followed.run("drop /* gh-ost */ table if exists `shop`.`_t_del`")
    followed.run("rename /* gh-ost */ table `shop`.`t` to `shop`.`_t_del`, `shop`.`_t_gho` to `shop`.`t`")
    followed.run("drop table `shop`.`_t_del`", "drop table `shop`.`_t_ghc`")
    assert_one_alter(followed, before)


def test_a_swap_of_pt_osc_is_one_alter_at_the_target(followed: Followed) -> None:
    before = find_id(followed)
    followed.run(*PT)
    assert list_tables(followed, COPY + "shop") == {"t", "_t_new"}, "so far it is a table like any other"
    followed.restarted()
    followed.run(*TRIGGERS)
    assert list_tables(followed, COPY + "shop") == {"t"}
    followed.restarted()
    followed.run("RENAME TABLE `shop`.`t` TO `shop`.`_t_old`, `shop`.`_t_new` TO `shop`.`t`")
    followed.run("DROP TABLE IF EXISTS `shop`.`_t_old`")
    assert_one_alter(followed, before)


OWN = [
    ("CREATE TABLE _t_new LIKE t", "ALTER TABLE _t_new ADD x INT"),
    ("CREATE TABLE _t_new LIKE t", "RENAME TABLE t TO _t_old, _t_new TO t"),
    ("CREATE TABLE _t_new LIKE t", "CREATE TABLE _t_old LIKE t", "CREATE TABLE _t_del LIKE t"),
    ("CREATE TABLE _t_gho LIKE t", "CREATE TABLE _t_ghc (id INT PRIMARY KEY, value INT)"),
    ("CREATE TABLE _t_new LIKE t", "CREATE TRIGGER mine AFTER INSERT ON t FOR EACH ROW INSERT INTO _t_new SET id=1"),
    ("CREATE TABLE _t_new LIKE t", "DROP TABLE _t_new", *PT[:1]),
    (*GHOST, "CREATE TABLE _t_old (id INT PRIMARY KEY)", "CREATE TABLE _t_new LIKE t"),
]  # fmt: skip


@pytest.mark.soak_on("mariadb")
@pytest.mark.parametrize("own", OWN, ids=range(len(OWN)))
def test_a_users_own_table_with_a_name_of_a_tool_arrives(followed: Followed, own: tuple[str, ...]) -> None:
    followed.run(*own)
    tools = {"_t_gho", "_t_ghc"} if own[: len(GHOST)] == GHOST else set()
    assert list_tables(followed, COPY + "shop") == list_tables(followed, "shop") - tools
    known = {name for name in list_tables(followed, "shop") if followed.catalog.find_table("one", "shop", name)}
    assert known == list_tables(followed, "shop") - tools
