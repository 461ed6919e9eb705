"""Errors of settings are in words for the person who wrote the file: a table of what people write."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from binlake.common.tomlfile import FORMS
from binlake.config.load import load_replication
from binlake.config.model import Replication
from binlake.errors import ConfigError
from binlake.extras.reparo.settings import ReparoSettings
from binlake.pump_service.feeder.settings import FeederFile, read_settings
from binlake.pump_service.pump.settings import PumpFile

HEAD = 'name = "a"\n[lake]\npath = "/l"\n'
PYDANTIC = re.compile(r"Input|should|valid (string|integer|tuple|boolean)|Field required|Value error|permitted|pattern")
CASES: list[tuple[str, str, str]] = [
    ("[target]\nhost = '127.0.0.1:3306'", "target.host", "the port has its own key, `port`"),
    ("[target]\nhost = 'db:3306'", "target.host", "the port has its own key, `port`"),
    ("[target]\nhost = '[::1]:3306'", "target.host", "the port has its own key, `port`"),
    ("[target]\nhost = 'mysql://db'", "target.host", "without a scheme"),
    ("[source.sql]\nhost = 'db:4000'", "source.sql.host", "the port has its own key, `port`"),
    ("[target]\nhost = 5", "target.host", "it must be text, in quotes"),
    ("[target]\nport = 70000", "target.port", "it must be at most 65535"),
    ("[target]\nport = 3.5", "target.port", "it must be a whole number"),
    ("[target]\ntxn-batch = 'x'", "target.txn-batch", "it must be a whole number or 'auto'"),
    ("[target]\ndb-type = 'oracle'", "target.db-type", "it must be 'mysql', 'mariadb' or 'tidb'"),
    ("[window]\nmax-seconds = 5\nmax_seconds = 6", "window", "`max-seconds` is given twice: also as `max_seconds`"),
    ("[window]\nmax-seconds = 'x'", "window.max-seconds", "it must be a whole number"),
    ("[window]\nstop-at = ['5 s']", "window.stop-at.0", "it must be a commit_ts, or -1"),
    ("[source]\npd-urls = 5", "source.pd-urls", "it must be a list"),
    ("[source]\ncluster-id = 'x'", "source.cluster-id", "it must be digits only"),
    ("[lake.storage]\nendpoint = 'minio:9000'", "lake.storage.endpoint", "it must be a URL that begins with http"),
    ("[source.sql]\nport = 4", "source.sql.host", "it is missing"),
    ("[airflow]\nwait-s = nan", "airflow.wait-s", "it must be a finite number"),
    ("[airflow]\nwait-s = -1", "airflow.wait-s", "it must be at least 0"),
    ("[relay]\nmax-file-size = 0", "relay.max-file-size", "it must be more than 0"),
    ("[mirror]\nenabled = 'perhaps'", "mirror.enabled", "it must be true or false"),
    ("[[target]]\nhost = 'a'", "target", "it must be a section"),
    ("[[feed]]\nname = 'a b'\nsink-uri = 'kafka://k/t'", "feed.0.name", "letters and digits, in parts joined by"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "key", "words"), CASES, ids=[text.replace("\n", " ") for text, *_ in CASES])
def test_wrong_setting_is_named_in_plain_words(tmp_path: Path, text: str, key: str, words: str) -> None:
    file = tmp_path / "r.toml"
    file.write_text(HEAD + text)
    with pytest.raises(ConfigError) as refused:
        load_replication(file, secrets=False)
    assert refused.value.message.startswith(f"`{key}`: ")
    assert words in refused.value.message
    assert not PYDANTIC.search(refused.value.message)


def test_byte_order_mark_is_no_statement(tmp_path: Path) -> None:
    file = tmp_path / "r.toml"
    file.write_bytes(b"\xef\xbb\xbf" + HEAD.encode())
    assert load_replication(file, secrets=False).name == "a"
    feeder = tmp_path / "feeder.toml"
    feeder.write_bytes(b"\xef\xbb\xbf" + f'data-dir = "{tmp_path}"\n[tracker]\nhost = "::1"\n'.encode()
                       + b'[[source]]\nname = "s"\nhost = "db:3306"\n')  # fmt: skip
    with pytest.raises(ConfigError, match=r"`source.0.host`: .*the port has its own key"):
        read_settings(feeder)


def test_every_pattern_of_a_setting_has_words() -> None:
    models = (Replication, FeederFile, PumpFile, ReparoSettings)
    found = {pattern for model in models for pattern in find_patterns(model.model_json_schema())}
    assert found == set(FORMS)


def find_patterns(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        if isinstance(schema.get("pattern"), str):
            yield schema["pattern"]
        schema = list(schema.values())
    if isinstance(schema, list):
        for part in schema:
            yield from find_patterns(part)
