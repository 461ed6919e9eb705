"""feeder.toml: defaults, refused settings and their messages."""

from __future__ import annotations

from pathlib import Path

import pytest

from binlake.errors import ConfigError
from binlake.pump_service.feeder.settings import read_settings

_LEAST = """
[tracker]
host = "tracker"

[[source]]
name = "shard-1"
host = "db1"
"""


def _write(folder: Path, text: str) -> Path:
    path = folder / "feeder.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_minimal_file_gets_the_defaults(tmp_path: Path) -> None:
    settings = read_settings(_write(tmp_path, _LEAST))
    (source,) = settings.source
    assert (source.servers, source.start.mode, source.derive_database_name("app")) == (
        (("db1", 3306),),
        "snapshot",
        "app",
    )
    assert settings.choose_server_id(source) >= 1 << 31
    assert settings.choose_server_id(source) == read_settings(_write(tmp_path, _LEAST)).choose_server_id(source)


def test_names_addresses_and_passwords_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEEDER_TEST_PASSWORD", "secret")
    more = """
password = "env:FEEDER_TEST_PASSWORD"
addresses = "db2, db3:3307"
rename-schema = "{source}_{schema}"
"""
    (source,) = read_settings(_write(tmp_path, _LEAST + more)).source
    assert source.password == "secret"
    assert source.servers == (("db1", 3306), ("db2", 3306), ("db3", 3307))
    assert source.derive_database_name("app") == "shard-1_app"
    assert "secret" not in repr(source)


def test_a_source_may_have_its_own_tracker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEEDER_TEST_PASSWORD", "secret")
    more = '[source.tracker]\nhost = "own"\npassword = "env:FEEDER_TEST_PASSWORD"\n[[source]]\nname = "shard-2"'
    settings = read_settings(_write(tmp_path, _LEAST + more))
    own, shared = map(settings.choose_tracker, settings.source)
    assert (own.host, own.password, shared.host) == ("own", "secret", "tracker")


def test_ignored_tables_match_patterns(tmp_path: Path) -> None:
    (source,) = read_settings(_write(tmp_path, _LEAST + 'ignore-tables = "Shop.log_?, tmp*.*"')).source
    names = [("shop", "LOG_1"), ("shop", "log_10"), ("shop", ""), ("tmp2", "t"), ("tmp2", ""), ("other", "log_1")]
    assert [source.ignores(*name) for name in names] == [True, False, False, True, True, False]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "`source`"),
        ('[[source]]\nname = "a"\n[source.tracker]\nhost = "x"\n[[source]]\nname = "b"', "none of their own: b"),
        (_LEAST + "hosts = 1", "did you mean `host`"),
        (_LEAST + '[source.start]\ngtid = "0-1-7"', '`gtid` belongs to mode = "gtid"'),
        (_LEAST + '[[source]]\nname = "shard-1"', "two sources have the name shard-1"),
        (_LEAST + 'server-id = 7\n[[source]]\nname = "b"\nserver-id = 7', "two sources have the server-id 7"),
        (_LEAST + 'rename-schema = "x"', "no `{schema}` in it"),
        (_LEAST + 'rename-schema = "{schema}{host}"', "may contain only `{source}` and `{schema}`"),
        (_LEAST + 'addresses = "db:x"', "'db:x' is not `host:port`"),
        (_LEAST + 'password = "env:FEEDER_TEST_UNSET"', "not set"),
        (_LEAST + '[source.start]\nmode = "position"', '`file` belongs to mode = "position"'),
    ],
)
def test_invalid_settings_are_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_settings(_write(tmp_path, text))
    assert message in str(caught.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_settings(tmp_path / "none.toml")
