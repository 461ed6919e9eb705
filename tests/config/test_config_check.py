"""`config check` refuses invalid settings, needs and prints no secrets; a date is not read as a commit_ts of 1970."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from support.replication_files import write_replication

from binlake import tso
from binlake.cli import run
from binlake.config.load import check_replication, load_replication
from binlake.config.model import Replication
from binlake.config.problems import find_notifier_problems, find_problems
from binlake.config.servers import TargetSection
from binlake.errors import ConfigError

TS = "470583292723200001"
LOCAL = {"engine": "local"}
BASE: dict[str, Any] = {"name": "demo", "lake": {"path": "/var/lib/lake"}, "target": {"db-type": "mariadb"}}


@pytest.mark.parametrize("text", ["20261121", "1795000000", "1795000000000", "2026", "1", "9223372036854775807",
                                  "99999999999999999999", "1970-01-01", "0001-01-01", "2100-01-02"])  # fmt: skip
def test_number_that_no_source_has_as_commit_ts_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"would be the commit_ts of|beyond the range of a commit_ts"):
        tso.parse(text)


def test_commit_ts_time_and_zero_are_accepted() -> None:
    assert (tso.parse(TS), tso.parse("0"), tso.parse_ts(TS)) == (int(TS), 0, int(TS))
    assert tso.extract_physical(tso.parse("2026-11-21")) == 1795219200000
    for text in ("2026-11-21", "-1", "", "１"):
        with pytest.raises(ValueError, match="is not a commit_ts"):
            tso.parse_ts(text)


def merge(change: dict[str, Any]) -> dict[str, Any]:
    values = {**BASE, **change}
    return {key: value for key, value in values.items() if value is not None}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"initial-commit-ts": "20261121"}, "`initial-commit-ts`: '20261121' would be the commit_ts of 1970"),
        ({"window": {"stop-at": ["20261121"]}}, "`window.stop-at`: '20261121' would be"),
        ({"window": {"stop-at": [TS, "470583292723200000"]}}, "must be ascending"),
        ({"window": {"stop-at": [TS, TS]}}, "must be ascending"),
        ({"filter": {"ignore-txn-commit-ts": ["0"]}}, "0 is not the commit_ts of"),
        ({"ddl-replacement": [{"commit-ts": "77", "sql": "DROP TABLE t"}]}, "ddl-replacement.commit-ts"),
        ({"ddl-injection": [{"commit-ts": "77", "sql": "DROP TABLE t", "db": "d"}]}, "ddl-injection.commit-ts"),
        ({"source": {"pd-urls": ""}}, "pd-urls`: no address is given"),
        ({"source": {"pd-urls": "not a url"}}, "`source.pd-urls`: an address must be http"),
        ({"source": {"pd-urls": "http://pd:99999"}}, "`source.pd-urls`"),
        ({"source": {"pd-urls": "ftp://pd:2379"}}, "`source.pd-urls`"),
        ({"source": {"status-url": ""}}, "`source.status-url`"),
        ({"source": {"status-url": "tidb:10080"}}, "`source.status-url`"),
        ({"source": {"status-url": "http://user:secret@tidb:10080"}}, "without user and path"),
        ({"source": {"security": {"ssl-cert": "/c.pem"}}}, "set both ssl-cert and ssl-key"),
        ({"source": {"timeout-s": float("inf")}}, "finite"),
        ({"lake": {"path": ""}}, "`lake.path`: empty"),
        ({"lake": {"path": "ftp://bucket/lake"}, "window": LOCAL}, "`lake.path`: a URI with the scheme 'ftp'"),
        ({"lake": {"path": "gs://bucket/lake"}, "window": LOCAL}, "`lake.path`: Google Cloud Storage by its own"),
        ({"lake": {"path": "abfss://lake@acct.dfs/l"}, "window": LOCAL}, "`lake.path`: a place in Azure's storage is"),
        ({"lake": {"path": "az://lake/l"}, "window": LOCAL}, "abfss://container@account.dfs.core.windows.net/prefix"),
        ({"lake": {"path": "abfss://lake@acct.dfs.core.windows.net/l", "storage": {"endpoint": "http://h:1"}},
          "window": LOCAL}, "`lake.storage.endpoint`: must end with the account of `lake.path`, as in http://h:1/acct"),
        ({"lake": {"path": "hdfs://name:8020/lake"}, "window": LOCAL}, "`lake.path`: HDFS is not served"),
        ({"lake": {"path": "s3://"}, "window": LOCAL}, "`lake.path`: a URI with the scheme 's3'"),
        ({"lake": {"path": "s3://key:secret@bucket/lake"}, "window": LOCAL}, "`lake.path`: has credentials"),
        ({"lake": {"path": "lake"}}, "depends on the working directory"),
        ({"relay": {"log-dir": "relay"}}, "`relay.log-dir`"),
        ({"relay": {"log-dir": "s3:///relay"}}, "`relay.log-dir`"),
        ({"target": {"host": ""}}, "`target.host`"),
        ({"target": {"user": " "}}, "`target.user`"),
        ({"target": {"checkpoint-schema": ""}}, "`target.checkpoint-schema`"),
        ({"target": {"tables": [{"db-name": "~[", "tbl-name": "t"}]}}, "not a regular expression"),
        ({"target": {"tables": [{"db-name": "", "tbl-name": "t"}]}}, "is neither a name nor a regular expression"),
        ({"filters": [{"schema-pattern": " ", "action": "Ignore"}]}, "filters.schema-pattern"),
        ({"filters": [{"schema-pattern": "a", "sql-pattern": [""]}]}, "matches every DDL"),
        ({"expression-filter": [{"schema": "a", "table": " t", "insert-value-expr": "a"}]}, "expression-filter.table"),
        ({"routes": [{"schema-pattern": "a", "target-schema": "b",
                      "extract-table": {"table-regexp": "x", "target-column": "c"}}]}, "captures nothing"),
        ({"source": {"pd-urls": "pd"}}, "`source.pd-urls`"),
        ({"source": {"security": {"ssl-ca": "ca.pem"}}}, "must begin with /"),
        ({"target": {"security": {"ssl-ca": "ca.pem"}}}, "`target.security`: the paths"),
        ({"source": {"sql": {"host": "h", "security": {"ssl-key": "/k"}}}}, "`source.sql.security`: set both"),
        ({"target": {"password": "env:"}}, "the name of an environment variable is missing"),
        ({"target": {"host": "~["}}, "`target.host`"),
        ({"target": {"connect-timeout-s": 1e308}}, "more than a year"),
        ({"window": {"max-seconds": True}}, "`max-seconds` is a number"),
        ({"routes": [{"schema-pattern": "a", "target-schema": "a/b"}]}, "routes.target-schema"),
        ({"airflow": {"schedule": "whenever"}}, "`airflow.schedule` is not valid"),
        ({"airflow": {"schedule": "61 * * * *"}}, "`airflow.schedule`"),
        ({"airflow": {"schedule": "0 0 31 2 *"}}, "a cron expression with a next time"),
        ({"airflow": {"schedule": "every 0s"}}, "`airflow.schedule`"),
        ({"airflow": {"verify": {"schedule": "daily"}}}, "`airflow.verify.schedule`"),
        ({"airflow": {"maintain": {"schedule": "x"}}}, "`airflow.maintain.schedule`"),
        ({"airflow": {"backfill": {"interval": ""}}}, "`airflow.backfill.interval`"),
        ({"airflow": {"pool": " "}}, "`airflow.pool`"),
        ({"airflow": {"on-failure": {"notifier": "no_such_module.Notifier"}}}, "cannot be imported on this machine"),
        ({"airflow": {"on-lag": {"notifier": "os.path.nothing", "seconds": 1}}}, "cannot be imported on this machine"),
        ({"airflow": {"on-failure": {"notifier": "os.sep"}}}, "is not callable"),
    ],
)  # fmt: skip
def test_invalid_setting_is_refused_with_its_key(change: dict[str, Any], why: str) -> None:
    assert why in refusal(change)


def refusal(change: dict[str, Any]) -> str:
    """The problems of a replication with that change; empty = none."""
    try:
        replication = Replication.model_validate(merge(change))
    except ValueError as error:
        return str(error)
    return "; ".join([*find_problems(replication), *find_notifier_problems(replication)])


@pytest.mark.parametrize(
    "change",
    [
        {}, {"initial-commit-ts": "0"}, {"initial-commit-ts": TS}, {"window": {"stop-at": [TS, str(int(TS) + 1)]}},
        {"source": {"pd-urls": "pd1:2379, https://pd2.example.org:2379/", "status-url": "http://[::1]:10080"}},
        {"lake": {"path": "s3a://bucket/lake"}, "window": LOCAL}, {"target": None},
        {"target": {"tables": [{"db-name": "~.", "tbl-name": "t"}]}},
        {"airflow": {"schedule": "every 10s", "verify": {"schedule": "@daily"}, "maintain": {"schedule": ""}}},
        {"airflow": {"schedule": "@continuous", "on-failure": {"notifier": "json.dumps"}}},
    ],
)  # fmt: skip
def test_valid_settings_are_accepted(change: dict[str, Any]) -> None:
    assert refusal(change) == ""


def test_loading_a_file_reports_all_problems(tmp_path: Path) -> None:
    file = write_replication(tmp_path, "demo", lake='path = "lake"', airflow='schedule = "never"')
    for read in (check_replication, load_replication, lambda path: load_replication(path, secrets=False)):
        with pytest.raises(ConfigError, match=r"`lake\.path`.*`airflow\.schedule`.*\[file="):
            read(file)


def check(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    status = run(["config", "check", *words])
    printed = capsys.readouterr()
    return status, printed.out, printed.err


def test_check_needs_and_prints_no_passwords(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    airflow = 'on-failure = {notifier = "json.dumps", kwargs = {token = "Hidden1", to = ["Hidden2"], key = "env:KEY"}}'
    sql = 'sql = {host = "tidb", password = "Hidden3"}'
    file = write_replication(tmp_path, "demo", airflow=airflow, source=sql)
    file.write_text(f'plain-passwords = ["source.sql.password"]\n{file.read_text()}')
    status, out, err = check(capsys, str(file))
    shown = json.loads(out)
    assert (status, err) == (0, "")
    assert "Hidden" not in out
    assert shown["target"]["password"] == "env:BINLAKE_TEST_UNSET_PASSWORD"
    assert shown["airflow"]["on-failure"]["kwargs"] == {"token": "***", "to": ["***"], "key": "env:KEY"}
    for section in (
        {"target": 'password = "Hidden5"\nhost = "a b"'},
        {"lake": 'path = "s3a://user:Hidden4@bucket/lake"', "window": 'engine = "local"'},
    ):
        status, out, err = check(capsys, str(write_replication(tmp_path, "demo", **section)))
        assert (status, out) == (1, "")
        assert "Hidden" not in err


def test_check_without_an_existing_file_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in ((), (str(tmp_path),), (str(tmp_path / "none.toml"),), ("",)):
        status, out, err = check(capsys, *words)
        assert (status, out, err.count("\n")) == (1, "", 1)
        assert err.startswith("error: ")


ODD: list[Any] = [
    "",
    " ",
    "-1",
    "0",
    "x",
    "~[",
    "~",
    "a" * 200,
    "\n",
    "ä/ö",
    "env:",
    "'",
    True,
    -1,
    0,
    1e308,
    [],
    {},
    None,
]


def test_random_values_are_accepted_or_refused_without_traceback(tmp_path: Path) -> None:
    draw = random.Random(5)
    verdicts = set()
    for number in range(300):
        raw = json.loads(json.dumps(merge({"filters": [{"schema-pattern": "a", "action": "Ignore", "events": ["all"]}],
               "routes": [{"schema-pattern": "a", "target-schema": "b"}], "source": {"pd-urls": "pd:1"},
               "expression-filter": [{"schema": "a", "table": "t", "insert-value-expr": "a = 1"}],
               "airflow": {"schedule": "", "on-lag": {"notifier": "json.dumps", "seconds": 1}}})))  # fmt: skip
        for _ in range(draw.randint(1, 2)):
            spoil(draw, raw)
        file = tmp_path / f"{number}.toml"
        file.write_text("\n".join(toml(raw)), encoding="utf-8")
        try:
            check_replication(file)
            verdicts.add("accepted")
        except ConfigError:
            verdicts.add("refused")
    assert verdicts == {"accepted", "refused"}


def spoil(draw: random.Random, raw: Any) -> None:
    """Replace a random value of `raw` by an odd one."""
    keys = list(raw) if isinstance(raw, dict) else range(len(raw))
    key = draw.choice(list(keys))
    if isinstance(raw[key], (dict, list)) and raw[key] and draw.random() < 0.8:
        spoil(draw, raw[key])
    else:
        raw[key] = draw.choice(ODD)


def toml(raw: dict[str, Any]) -> list[str]:
    """The document, one line per top-level key, without None, which TOML does not have."""
    return [f"{json.dumps(key)} = {value(one)}" for key, one in raw.items() if one is not None]


def value(one: Any) -> str:
    """A value as TOML in one line."""
    if isinstance(one, dict):
        return "{" + ", ".join(f"{json.dumps(k)} = {value(v)}" for k, v in one.items() if v is not None) + "}"
    if isinstance(one, list):
        return "[" + ", ".join(value(part) for part in one if part is not None) + "]"
    return json.dumps(one)


@pytest.mark.parametrize(
    ("text", "mode", "rows"),
    [("auto", "atomic", 1000), ("auto", "ordered", 100), ("250", "ordered", 250), ("1", "parallel", 1)],
)
def test_batch_rows_are_those_set_or_those_of_the_mode(text: str, mode: str, rows: int) -> None:
    value = text if text == "auto" else int(text)
    assert TargetSection.model_validate({"txn-batch": value, "mode": mode}).batch_rows == rows


@pytest.mark.parametrize("value", [0, -1, "many"])
def test_batch_without_rows_is_refused(value: object) -> None:
    with pytest.raises(ValidationError):
        TargetSection.model_validate({"txn-batch": value})


@pytest.mark.parametrize(("compression", "warned"), [("none", False), ("gzip", True), ("zstd", True)])
def test_files_that_the_original_cannot_read_are_named_where_they_are_chosen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], compression: str, warned: bool
) -> None:
    file = tmp_path / "r.toml"
    file.write_text(
        f'name = "r"\n[lake]\npath = "{tmp_path}/lake"\n[[feed]]\nname = "old"\n'
        f'sink-uri = "file:///p?protocol=pb&compression={compression}"\n'
    )
    assert run(["config", "check", str(file)]) == 0
    told = capsys.readouterr().err
    assert ("feed old: compression=" + compression in told) is warned
    assert ("magic mismatch" in told) is warned
