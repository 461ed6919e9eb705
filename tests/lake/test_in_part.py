"""A lake that started when tables already had rows marks their data as partial until the table is truncated."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.tinylake import TinyLake
from support.workload import Workload, integer

from binlake.audit.audit import Audit
from binlake.audit.preview import preview_rows
from binlake.cli import run as main
from binlake.lake.seek import TimeBudget
from binlake.lake.windowlog import WindowLog
from binlake.mirror.versions import IN_PART
from binlake.rules import Rules
from binlake.spark_jobs.commands.restore import find_incomplete_tables
from binlake.spark_jobs.job.context import StageContext


@pytest.fixture
def late(tmp_path: Path) -> TinyLake:
    """`t` had three rows before the lake started, one of which is changed later; `still` is untouched; `new` is
    created.
    """
    w = Workload()
    w.create_database("shop")
    for name in ("t", "still"):
        w.create_table("shop", name, [integer("id"), integer("n")], ["id"])
    for key in range(3):
        w.begin().insert("shop", "t", id=key, n=key).insert("shop", "still", id=key, n=key).commit()
    lake = TinyLake(tmp_path, w, {})
    lake.hi = w.clock()
    w.begin().update("shop", "t", {"id": "1", "n": "1"}, n=100).commit()
    w.create_table("shop", "new", [integer("id")], ["id"])
    w.begin().insert("shop", "new", id=1).commit()
    lake.land()
    return lake


def test_every_view_of_a_table_says_that_it_is_partial(
    late: TinyLake, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    # one of three rows is shown, and the table is marked as partial.
    audit, log = Audit(late.paths, Rules.of(late.replication)), WindowLog(late.paths)
    assert audit.find_incomplete_tables(late.hi) == {("shop", "t"): IN_PART, ("shop", "still"): IN_PART}
    shown = preview_rows(audit, log, ("shop", "t"), late.hi, 10, TimeBudget(60))
    assert (len(shown.rows), shown.inexact) == (1, IN_PART)
    file = tmp_path / "r.toml"
    file.write_text(f'name = "demo"\n[lake]\npath = "{late.replication.lake.path}"\n')
    asked = ["audit", "table", "shop.t", "--at", str(late.hi), "--replication", str(file)]
    assert main([*asked, "--output", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["inexact"] == IN_PART
    assert main(asked) == 0
    assert "known in part" in " ".join(capsys.readouterr().out.split())
    assert main(["audit", "sql", "--table", "shop.t", "--replication", str(file)]) == 0
    assert capsys.readouterr().out.startswith(f"-- inexact: {IN_PART}\n")
    assert main([*asked[:2], "shop.new", *asked[3:], "--output", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["inexact"] == ""


def test_truncated_table_is_complete(late: TinyLake) -> None:
    before = late.hi
    late.workload.truncate("shop", "t")
    late.workload.begin().insert("shop", "t", id=7, n=7).commit()
    late.land()
    audit = Audit(late.paths, Rules.of(late.replication))
    assert audit.read_table_as_of("shop", "t", late.hi).inexact == ""
    assert set(audit.find_incomplete_tables(late.hi)) == {("shop", "still")}
    # The earlier state stays partial.
    assert audit.read_table_as_of("shop", "t", before).inexact == IN_PART
    assert set(audit.find_incomplete_tables(before)) == {("shop", "t"), ("shop", "still")}


def test_restore_names_partial_tables(late: TinyLake) -> None:
    # A target that had no base lacks the rows that the lake never saw.
    ctx = StageContext(late.replication, "test", lambda: pytest.fail("Spark must not be needed"))
    assert find_incomplete_tables(ctx, late.hi) == {("shop", "t"): IN_PART, ("shop", "still"): IN_PART}
