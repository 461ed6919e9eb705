"""Who writes the lake, as somebody who waits sees it: the look takes nothing and stops nobody."""

from pathlib import Path

from binlake.lake.lock import lake_lock, lock_holder
from binlake.lake.paths import LakePaths


def test_a_lock_is_seen_while_it_is_held_and_looking_holds_nothing(tmp_path: Path) -> None:
    paths = LakePaths(str(tmp_path / "lake" / "orders"))
    assert lock_holder(paths, ["sql", "mirror"]) == ""
    with lake_lock(paths, "sql", wait_s=0):
        assert lock_holder(paths, ["mirror"]) == ""
        assert lock_holder(paths, ["mirror", "sql"]).startswith("sql: pid ")
    assert lock_holder(paths, ["mirror", "sql"]) == ""
    with lake_lock(paths, "sql", wait_s=0):
        assert lock_holder(paths, ["sql"]) != ""


def test_a_lake_without_a_lock_has_nobody_to_wait_for() -> None:
    assert lock_holder(LakePaths("s3a://bucket/orders"), ["sql"]) == ""
