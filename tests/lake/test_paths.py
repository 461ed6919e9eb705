"""Where a lake's tables are: names of the source never lead outside it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from binlake.config import Replication
from binlake.lake.opentable import open_dataset
from binlake.lake.paths import LakePaths


def test_plain_names_are_used_as_folders() -> None:
    assert LakePaths("/l/r").locate_mirror("shop", "item 2.b–ü") == "/l/r/mirror/shop/item 2.b–ü"


@pytest.mark.parametrize(
    "name", ["..", ".", "../../../other", "a/b", "a\\b", "a%2Fb", "%", "%2E%2E", "=2E", "[x]", "\x01|^"]
)
def test_any_source_name_is_one_folder_that_delta_finds_again(tmp_path: Path, name: str) -> None:
    paths = LakePaths(str(tmp_path / "own"))
    place = paths.locate_mirror(name, name)
    write_deltalake(place, pa.table({"a": [1]}))
    assert open_dataset(DeltaTable(place)).to_table().num_rows == 1
    made = [log.parent.relative_to(tmp_path / "own" / "mirror") for log in tmp_path.rglob("_delta_log")]
    assert [len(one.parts) for one in made] == [2]


def test_two_names_are_two_folders() -> None:
    names = ["a/b", "a%2Fb", "a\\b", "..", "%2E%2E", ".", "=2E", "=2E=2E", "a=2Fb"]
    assert len({LakePaths("/l").locate_mirror("d", name) for name in names}) == len(names)


@pytest.mark.parametrize("text", ["/data/a läke", "file:///data/a l%C3%A4ke", "file:///data/a läke/"])
def test_file_uri_is_the_folder_that_it_names(text: str) -> None:
    paths = LakePaths.of(Replication.model_validate({"name": "r", "lake": {"path": text}}))
    assert paths.root == "/data/a läke/r"
    assert paths.local == Path("/data/a läke/r")
