"""Settings that the replications of a folder share."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.replication_files import write_replication

from binlake.config import load_replication
from binlake.config.load import find_replication, find_replications
from binlake.config.sidefiles import lay_over
from binlake.errors import ConfigError


def write_defaults(folder: Path, text: str) -> Path:
    path = folder / "_defaults.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_file_says_what_differs(tmp_path: Path) -> None:
    write_defaults(tmp_path, '[airflow]\npool = "lake"\npriority = 3\n[window]\nmax-seconds = 7\n[lake]\npath = "/l"')
    write_replication(tmp_path, "orders", airflow="priority = 9", lake=None)
    replication = load_replication(tmp_path / "orders.toml", secrets=False)
    assert (replication.airflow.pool, replication.airflow.priority) == ("lake", 9)
    assert (replication.window.max_seconds, replication.lake.path) == (7, "/l")
    assert replication.name == "orders"


def test_lists_and_values_replace_the_default_one() -> None:
    assert lay_over({"a": {"x": [1], "y": 2}, "b": 1, "c": {"z": 1}}, {"a": {"x": [3]}, "b": {"q": 1}, "c": 5}) == {
        "a": {"x": [3], "y": 2},
        "b": {"q": 1},
        "c": 5,
    }


@pytest.mark.parametrize(
    ("text", "part"),
    [("name = 'all'", "name one"), ("[window", "not valid TOML"), ("[window]\nmax-second = 1", "max-second")],
)
def test_wrong_defaults_are_an_error_of_each_file_that_names_them(tmp_path: Path, text: str, part: str) -> None:
    defaults = write_defaults(tmp_path, text)
    path = write_replication(tmp_path, "orders")
    with pytest.raises(ConfigError, match=part) as raised:
        load_replication(path, secrets=False)
    assert str(defaults) in str(raised.value)
    found = find_replications(tmp_path)
    assert not found.good
    assert path in found.broken


def test_a_replication_is_found_in_a_file_of_another_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BINLAKE_REPLICATIONS", str(tmp_path))
    write_defaults(tmp_path, "[window]\nmax-seconds = 7")
    write_replication(tmp_path, "orders").rename(tmp_path / "stock.toml")
    found = find_replication("orders")
    assert found is not None
    assert found.window.max_seconds == 7
    assert find_replication("stock") is None
