"""Who holds the lake's lock, as a waiting process sees it; looking takes no lock."""

from pathlib import Path

from binlake.lake.lock import hold_lake_lock, lock_holder
from binlake.lake.paths import LakePaths


def test_held_lock_is_visible_and_looking_takes_no_lock(tmp_path: Path) -> None:
    paths = LakePaths(str(tmp_path / "lake" / "orders"))
    assert lock_holder(paths, ["sql", "mirror"]) == ""
    with hold_lake_lock(paths, "sql", wait_s=0):
        assert lock_holder(paths, ["mirror"]) == ""
        assert lock_holder(paths, ["mirror", "sql"]).startswith("sql: pid ")
    assert lock_holder(paths, ["mirror", "sql"]) == ""
    with hold_lake_lock(paths, "sql", wait_s=0):
        assert lock_holder(paths, ["sql"]) != ""
