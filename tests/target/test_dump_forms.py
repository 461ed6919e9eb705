"""Non-text values as different dump tools write them: a server gets each value unchanged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.baseloads import BASE, CLUSTER, load_base, replication
from support.mariadb import MariaDb, rows

from binlake.mysqlbinlog.dumpfolder import read_dump_folder
from binlake.target.base import find_base

pytestmark = [pytest.mark.mariadb, pytest.mark.servers("mariadb", "mysql")]

HEAD = b"/*!40101 SET NAMES binary*/;\n/*!40103 SET TIME_ZONE='+00:00' */;\n"
# table: its columns, its rows, the query, the rows that the server must return
FORMS: dict[str, tuple[str, bytes, str, list[tuple[Any, ...]]]] = {
    # mydumper writes JSON inside a function call
    "j": (
        "a INT PRIMARY KEY, j JSON",
        rb'(1,CONVERT("{\"k\": \")(\"}" USING UTF8MB4)),(2,CONVERT(0x5B5D USING UTF8MB4)),(3,NULL)',
        "JSON_UNQUOTE(JSON_EXTRACT(j, '$.k')), JSON_LENGTH(j)",
        [(")(", 1), (None, 0), (None, None)],
    ),
    # bytes that are not text, with and without _binary, and as hex
    "b": (
        "a INT PRIMARY KEY, b BLOB",
        b'(1,_binary "\xe9\xff\\0\\Z\\"(;"),(2,"\xc3\x28\xa0"),(3,0x00FF),(4,x\'00ff\')',
        "HEX(b)",
        [("E9FF001A22283B",), ("C328A0",), ("00FF",), ("00FF",)],
    ),
    # dates that a strict server would refuse
    "z": (
        "a INT AUTO_INCREMENT PRIMARY KEY, d DATE, dt DATETIME, ts TIMESTAMP NOT NULL DEFAULT '2020-01-01 00:00:00'",
        b"(0,'0000-00-00','2020-00-31 00:00:00','0000-00-00 00:00:00'),(7,'2021-02-31',NULL,'2021-07-01 02:00:00')",
        "CAST(d AS CHAR), CAST(dt AS CHAR), CAST(ts AS CHAR)",
        [
            ("0000-00-00", "2020-00-31 00:00:00", "0000-00-00 00:00:00"),
            ("2021-02-31", None, "2021-07-01 02:00:00"),
        ],
    ),
    "n": (
        "a INT PRIMARY KEY, b BIT(9), y YEAR, s SET('p','q'), f FLOAT, n DECIMAL(30,10)",
        b"(1,b'101',2001,'p,q',1.1e0,-12345678901234567890.0123456789),(2,x'01ff',0000,'',-0,0)",
        "b + 0, y, s, CAST(n AS CHAR)",
        [(5, 2001, "p,q", "-12345678901234567890.0123456789"), (511, 0, "", "0.0000000000")],
    ),
    # before its parent table in alphabetical order
    "c": (
        "a INT PRIMARY KEY, p INT, CONSTRAINT f FOREIGN KEY (p) REFERENCES `z` (a)",
        b"(1,7)",
        "p",
        [(7,)],
    ),
    # generated columns are left out of the column list
    "g": (
        "`a` INT PRIMARY KEY, `s` INT GENERATED ALWAYS AS (`a` + 1) STORED, `v` INT AS (`a` + 2) VIRTUAL",
        b"(0),(11)",
        "s, v",
        [(1, 2), (12, 13)],
    ),
    "empty": ("a INT PRIMARY KEY", b"", "a", []),
}
ENDS = {
    "g": " /*!50100 PARTITION BY RANGE (`a`)\n(PARTITION p0 VALUES LESS THAN (10) ENGINE = InnoDB,\n"
    " PARTITION p1 VALUES LESS THAN MAXVALUE ENGINE = InnoDB) */",
    "z": " AUTO_INCREMENT=40",
}


def test_each_dump_form_restores_the_original_value(server: MariaDb, tmp_path: Path) -> None:
    server.wipe()
    (tmp_path / "metadata").write_text(f"SHOW MASTER STATUS:\n\tLog: tidb-binlog\n\tPos: {BASE}\n")
    (tmp_path / "d-schema-create.sql").write_text("CREATE DATABASE `d`;\n")
    for table, (columns, data, _, _) in FORMS.items():
        (tmp_path / f"d.{table}-schema.sql").write_text(f"CREATE TABLE `{table}` ({columns}){ENDS.get(table, '')};\n")
        if data:
            listed = b" (`a`)" if table == "g" else b""
            text = HEAD + f"INSERT INTO `{table}`".encode() + listed + b" VALUES" + data + b";\n"
            (tmp_path / f"d.{table}.00000.sql").write_bytes(text)
    done = load_base(replication(server), find_base(tmp_path), CLUSTER)
    for table, (_, _, asked, wanted) in FORMS.items():
        assert rows(server, f"SELECT {asked} FROM d.`{table}` ORDER BY a") == wanted, table
    assert done.rows == sum(len(wanted) for _, _, _, wanted in FORMS.values())


def test_objects_that_are_not_loaded_are_named(tmp_path: Path) -> None:
    for name in ("d-schema-create", "d.t-schema", "d.v-schema", "d.v-schema-view"):
        (tmp_path / f"{name}.sql").write_text("")
    named = ["d-schema-post.sql.gz", "d.seq-schema-sequence.sql", "d.t-schema-triggers.sql"]
    for name in named:
        (tmp_path / name).write_bytes(b"")
    dump = read_dump_folder(tmp_path)
    assert (list(dump.tables), dump.views, list(dump.left_out)) == ([("d", "t")], (("d", "v"),), named)
