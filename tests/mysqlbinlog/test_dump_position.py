"""The metadata of old and new versions of mydumper and dumpling."""

from __future__ import annotations

from pathlib import Path

import pytest

from binlake.errors import ConfigError
from binlake.mysqlbinlog.dumpfolder import DumpPosition, read_dump_folder, read_dump_position
from binlake.mysqlbinlog.model import BinlogPosition

UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
METADATA = {
    "dumpling of TiDB": (
        "Started dump at: 2020-11-10 10:40:19\nSHOW MASTER STATUS:\n\tLog: tidb-binlog\n\tPos: 420747102018863124\n\n"
        "Finished dump at: 2020-11-10 10:40:20\n",
        DumpPosition(420747102018863124, BinlogPosition("", 0)),
    ),
    "old mydumper of a replica": (
        "Started dump at: 2021-01-01 00:00:00\nSHOW MASTER STATUS:\n\tLog: mysql-bin.000003\n\tPos: 1234\n"
        f"\tGTID:{UUID}:1-5,\n{UUID.replace('3e', '4e')}:1-9\n\nSHOW SLAVE STATUS:\n\tHost: other\n"
        "\tLog: other.000009\n\tPos: 99\n\tGTID:x\n\nFinished dump at: 2021-01-01 00:00:02\n",
        DumpPosition(0, BinlogPosition("mysql-bin.000003", 1234, f"{UUID}:1-5,{UUID.replace('3e', '4e')}:1-9")),
    ),
    "mydumper 0.12": (
        "# Started dump at: 2022-06-01 10:00:00\n[master]\n# Channel_Name = '' # for CHANNEL\nFile = bin.000002\n"
        "Position = 157\nExecuted_Gtid_Set = 0-1-5\n\n[`d`.`t`]\nRows = 3\n",
        DumpPosition(0, BinlogPosition("bin.000002", 157, "0-1-5")),
    ),
    "mydumper 0.16": (
        "# Started dump at: 2024-06-01 10:00:00\n[config]\nquote_character = BACKTICK\n\n[source]\n"
        f'# Channel_Name = \'\'\nexecuted_gtid_set = "{UUID}:1-5"\nSOURCE_LOG_FILE = "binlog.000003"\n'
        'SOURCE_LOG_POS = 157\n#SOURCE_PORT = 3306\n\n[`d`.`t`]\nreal_table_name=t\nrows = 3\n',
        DumpPosition(0, BinlogPosition("binlog.000003", 157, f"{UUID}:1-5")),
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", METADATA)
def test_position_is_read_from_the_metadata(tmp_path: Path, kind: str) -> None:
    text, position = METADATA[kind]
    (tmp_path / "metadata").write_text(text)
    assert read_dump_position(tmp_path) == position
    (tmp_path / "d-schema-create.sql").write_text("CREATE DATABASE d")
    (tmp_path / "d.t-schema.sql").write_text("CREATE TABLE t (id INT)")
    dump = read_dump_folder(tmp_path)
    # Another dump overwrites the folder: what was read before is still that of one dump.
    (tmp_path / "metadata").write_text("[master]\nFile = other.000009\nPosition = 9\n\n[`d`.`t`]\nRows = 9\n")
    assert dump.position == position
    assert dump.metadata_rows == ({("d", "t"): 3} if kind == "mydumper 0.16" else {})


def test_folder_without_a_dump_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no metadata of a dump"):
        read_dump_position(tmp_path)
    (tmp_path / "metadata").write_text("Started dump at: 2020-11-10 10:40:19\nFinished dump at: 2020-11-10 10:40:20\n")
    with pytest.raises(ConfigError, match=r"has no position.*--no-locks"):
        read_dump_position(tmp_path)
