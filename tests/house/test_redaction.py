"""No error text contains values of rows unless the configuration shows them; names and positions stay."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pymysql import err
from support.replication_files import write_replication

from binlake.common.redaction import are_row_values_shown, redact_key, redact_server_text, redact_sql, show_row_values
from binlake.config.load import load_replication
from binlake.repair.differences import Difference
from binlake.rows.codec.datum import write_decimal
from binlake.rows.codec.temporal import pack_moment
from binlake.target.session.failures import translate_error

SECRETS = ("Müller", "4711", "0AFF", "12.5", "a'b", "O''Neil", "-1e-5")
WRITES = (
    "REPLACE INTO `d`.`t 4711x` (`a1`,`b`) VALUES (4711,'Müller'),(-1e-5,'a\\'b'),(12.5,'O''Neil')",
    "DELETE FROM `d`.`t 4711x` WHERE (`a1`,`b`) IN ((4711,x'0AFF'),(12.5,_binary'Müller'))",
    "UPDATE `d`.`t 4711x` SET `b`='Müller' WHERE `a1` = 4711 LIMIT 1",
    'INSERT INTO `d`.`t 4711x` VALUES (4711,"Müller \\"12.5 ",_binary "0AFF""O\'\'Neil")',
    'INSERT INTO `d`.`t 4711x` VALUES (12.5,CONVERT("a\'b" USING UTF8MB4))',
    'INSERT INTO `d`.`t 4711x` VALUES ("cut off',
    " (SELECT COUNT(*) FROM `d`.`t 4711x` WHERE `b` IN ('Müller','O''Neil','cut off",
)


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    show_row_values(False)
    yield
    show_row_values(False)


@pytest.mark.parametrize("sql", WRITES)
def test_statement_about_rows_keeps_names_but_no_value(sql: str) -> None:
    shown = redact_sql(sql)
    assert not [secret for secret in SECRETS if secret in shown.replace("`t 4711x`", "")]
    assert "`t 4711x`" in shown
    assert "cut off" not in shown
    show_row_values(True)
    assert redact_sql(sql) == sql


def test_ddl_is_shown_unchanged() -> None:
    sql = "ALTER TABLE t ADD COLUMN a INT DEFAULT 7 COMMENT 'x'"
    assert redact_sql(sql) == sql
    assert redact_server_text("Duplicate column name 'a'", sql) == "Duplicate column name 'a'"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Duplicate entry 'Müller-1' for key 'PRIMARY'", "Duplicate entry '?' for key 'PRIMARY'"),
        ("Duplicate entry 'a' for key 'x' for key 't.u'", "Duplicate entry '?' for key 't.u'"),
        ("Incorrect integer value: 'Müller' for column `d`.`t`.`a` at row 1",
         "Incorrect integer value: '?' for column `d`.`t`.`a` at row 1"),
        ("Truncated incorrect DOUBLE value: 'Müller'", "Truncated incorrect DOUBLE value: '?'"),
        ("You have an error in your SQL syntax; use near 'Müller')' at line 1",
         "You have an error in your SQL syntax; use near '?' at line 1"),
        ("BIGINT value is out of range in '(4711 - 9)'", "BIGINT value is out of range in '?'"),
        ("Data too long for column 'name' at row 3", "Data too long for column 'name' at row 3"),
        ("Column 'name' cannot be null", "Column 'name' cannot be null"),
    ],
)  # fmt: skip
def test_server_message_about_rows_keeps_names_but_no_value(text: str, shown: str) -> None:
    assert redact_server_text(text, WRITES[0]) == shown
    show_row_values(True)
    assert redact_server_text(text, WRITES[0]) == text


def test_target_error_says_where_and_how_to_see_the_values() -> None:
    mysql = err.IntegrityError(1062, "Duplicate entry 'Müller' for key 'PRIMARY'")
    told = str(translate_error(mysql, "db:3306", WRITES[0]))
    assert not [secret for secret in SECRETS if secret in told.replace("`t 4711x`", "")]
    assert "code=1062" in told
    assert "show-row-values" in told
    show_row_values(True)
    told = str(translate_error(mysql, "db:3306", WRITES[0]))
    assert "Müller" in told
    assert "show-row-values" not in told


def test_key_has_a_stable_mark_and_values_show_only_their_length() -> None:
    assert redact_key('["1"]') == redact_key('["1"]') == "#43de3a417d75" != redact_key('["2"]')
    for read, text in ((pack_moment, "Müller"), (lambda text: write_decimal(text, 5, 2), "Müller")):
        with pytest.raises(ValueError, match="<6 characters>"):
            read(text)
    one = Difference("d", "t", '["Müller"]', "different", ("a", "b"), {"a": "4711"}, {"a": "1"})
    assert one.format_without_values() == f"d.t {redact_key(one.key)}: differs in a, b"


def test_configuration_can_show_values(tmp_path: Path) -> None:
    file = write_replication(tmp_path, "demo", target=None)
    load_replication(file)
    assert not are_row_values_shown()
    file.write_text(f"show-row-values = true\n{file.read_text()}")
    load_replication(file, secrets=False)
    assert not are_row_values_shown()
    load_replication(file)
    assert are_row_values_shown()
