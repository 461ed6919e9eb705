"""DM's task file is converted to a replication and a feeder.toml, with a line about each setting (S4-52)."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from binlake.cli import run
from binlake.common.tomlfile import to_toml_sections
from binlake.config.load import check_replication
from binlake.config.model import Replication
from binlake.errors import ConfigError
from binlake.extras.importing.document import DocumentEntry
from binlake.extras.importing.rules import Scope
from binlake.extras.importing.units import parse_duration
from binlake.pump_service.feeder.settings import FeederFile
from binlake.rules import Rules
from binlake.rules.patterns import compile_wildcard

TASK = """
name: Shards
task-mode: all
shard-mode: pessimistic
target-database: {host: 10.0.0.9, port: 4000, user: root, password: TopSecret1}
routes:
  sale: {schema-pattern: "store_*", table-pattern: "sale_*", target-schema: store, target-table: sale,
         extract-table: {table-regexp: "sale_(.*)", target-column: c_table},
         extract-schema: {schema-regexp: "^store_(.*)", target-column: c_schema},
         extract-source: {source-regexp: "(.*)", target-column: c_source}}
  store: {schema-pattern: "store_*", target-schema: store}
filters:
  keep: {schema-pattern: user, events: [drop database, truncate table], action: ignore}
expression-filter:
  even: {schema: user, table: info, insert-value-expr: "id % 2 = 0"}
block-allow-list:
  lists:
    do-dbs: [user, "store_*", "~^log[0-9]$"]
    ignore-tables: [{db-name: user, tbl-name: log}]
syncers:
  global: {worker-count: 32, batch: 200, compact: true, multiple-rows: true, safe-mode: false,
           safe-mode-duration: 1m30s}
mysql-instances:
- &one
  source-id: s-01
  route-rules: [sale, store]
  filter-rules: [keep]
  expression-filters: [even]
  block-allow-list: lists
  syncer-config-name: global
  mydumper-thread: 8
- {<<: *one, source-id: s-02}
"""
SOURCE = (
    "source-id: {name}\nserver-id: 7{number}\nfrom: {{host: db{number}, port: 3307, user: dm, password: TopSecret2}}\n"
)


def write(folder: Path, task: str, sources: int = 2) -> list[str]:
    """Write the task and its source files; returns their paths."""
    folder.mkdir(exist_ok=True)
    files = [folder / "task.yaml", *(folder / f"source{number}.yaml" for number in range(1, sources + 1))]
    texts = [task, *(SOURCE.format(name=f"s-0{number}", number=number) for number in range(1, sources + 1))]
    for file, text in zip(files, texts, strict=True):
        file.write_text(text, encoding="utf-8")
    return [str(file) for file in files]


def import_files(folder: Path, task: str, *options: str, sources: int = 2) -> tuple[Replication, FeederFile, str]:
    """Import a task; returns its replication and its feeder, as Binlake reads them, and the text of the replication."""
    out = folder / "out"
    assert run(["dm", "import", *write(folder, task, sources), "--out", str(out), *options]) == 0
    (file,) = out.glob("*.toml")
    return check_replication(file), read_feeder(out / "feeder" / file.name), file.read_text()


def read_feeder(file: Path) -> FeederFile:
    """A feeder.toml with unresolved passwords."""
    return FeederFile.model_validate(tomllib.loads(file.read_text()))


def change_task(**keys: Any) -> str:
    """The task with other values of top-level keys."""
    raw = yaml.safe_load(TASK)
    raw.update({key.replace("_", "-"): value for key, value in keys.items()})
    return yaml.safe_dump({key: value for key, value in raw.items() if value is not None})


def one_instance(**keys: Any) -> str:
    """The task with only its first instance, with other values of its keys."""
    first = yaml.safe_load(TASK)["mysql-instances"][0]
    return change_task(mysql_instances=[{**first, **{key.replace("_", "-"): value for key, value in keys.items()}}])


def refusal(folder: Path, capsys: pytest.CaptureFixture[str], task: str, *options: str, sources: int = 2) -> str:
    """The error of an import, which writes nothing."""
    out = folder / "out"
    assert run(["dm", "import", *write(folder, task, sources), "--out", str(out), *options]) == 1
    assert not out.exists()
    printed = capsys.readouterr()
    assert printed.out == ""
    return printed.err


def test_settings_of_the_articles_task_are_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:  # S4-52
    replication, feeder, text = import_files(tmp_path, TASK)
    target = replication.target
    assert target is not None
    assert (replication.name, target.db_type, target.host, target.port) == ("shards", "tidb", "10.0.0.9", 4000)
    assert (target.worker_count, target.batch_rows, target.multiple_rows) == (32, 200, True)
    assert (target.mode, target.safe_mode, target.safe_mode_duration_s) == ("parallel", "auto", 90.0)
    assert [(one.name, one.host, one.port, one.user) for one in feeder.source] == [
        ("s-01", "db1", 3307, "dm"), ("s-02", "db2", 3307, "dm"),
    ]  # fmt: skip
    assert {(one.start.mode, one.snapshot.threads, one.rename_schema) for one in feeder.source} == {
        ("snapshot", 8, "{source}_{schema}")
    }
    # A full load reads the tables that the instance's lists allow, by their names at the source.
    for one in feeder.source:
        names = [("user", "info"), ("user", "log"), ("store_1", "t"), ("other", "t"), ("mysql", "t")]
        assert [one.snapshot.loads(*name) for name in names] == [True, False, True, False, False]
    report = capsys.readouterr().out
    line = next(number for number, text in enumerate(TASK.splitlines(), 1) if "worker-count: 32" in text)
    assert f"task.yaml:{line}  taken    syncers.global.worker-count: target.worker-count = 32" in report
    assert replication.shard_mode == "pessimistic"
    assert "source1.yaml:2  differs  server-id" in report
    assert "TopSecret" not in report + text
    assert "BINLAKE_SOURCE_S_02_PASSWORD" in report


def test_rules_of_each_source_equal_those_of_an_import_of_it_alone(tmp_path: Path) -> None:  # S4-52, S4-03
    both = Rules.of(import_files(tmp_path / "both", TASK)[0])
    alone = Rules.of(import_files(tmp_path / "alone", one_instance(), sources=1)[0])
    for source in ("s-01", "s-02"):
        for db in ("user", "store_1", "store_", "log7", "log77", "xlog7", "other", "mysql", "USER"):
            own = f"{source}_{db}"
            for table in ("info", "log", "sale_9", "t", ""):
                assert both.keeps(own, table) == alone.keeps(db, table), (own, table)
                if not alone.keeps(db, table):
                    continue
                assert both.events.list_passed_kinds(own, table) == alone.events.list_passed_kinds(db, table)
                if not table:
                    assert both.routes.map_database(own) == alone.routes.map_database(db)
                    continue
                assert both.routes.map_table(own, table) == alone.routes.map_table(db, table)
                assert both.routes.extract_columns(own, table) == alone.routes.extract_columns(db, table)
                assert both.expressions.list_filtered_kinds(own, table) == alone.expressions.list_filtered_kinds(
                    db, table
                )


def test_task_without_lists_excludes_only_system_databases(tmp_path: Path) -> None:
    task = change_task(
        block_allow_list=None, routes=None, mysql_instances=[{"source-id": "s-01"}, {"source-id": "s-02"}]
    )
    rules = Rules.of(import_files(tmp_path, task)[0])
    assert [rules.keeps(f"s-01_{db}", "t") for db in ("a", "mysql", "sys", "mysql2")] == [True, False, False, True]
    assert rules.routes.map_table("s-02_shop", "t") == ("shop", "t")


def test_keep_schema_names_does_not_rename_databases(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task = change_task(mysql_instances=[{"source-id": "s-01", "route-rules": ["sale"], "block-allow-list": "lists"},
                                        {"source-id": "s-02", "route-rules": ["sale", "store"],
                                         "block-allow-list": "lists"}])  # fmt: skip
    replication, feeder, _ = import_files(tmp_path, task, "--keep-schema-names")
    assert [one.rename_schema for one in feeder.source] == ["", ""]
    assert [one.schema_pattern for one in replication.routes] == ["store_*", "store_*"]
    report = capsys.readouterr().out
    assert "differs  routes.store: [[routes]] applies to all sources, not only to s-02" in report
    assert "none     filters.keep: omitted, since no instance names it" in report


@pytest.mark.parametrize(
    "pattern", ["user", "store_*", "s?ore", "[a-c]x", "~^store_[0-9]+$", "~re_", "~^a.b$", "~[^a]$"]
)
def test_pattern_with_source_prefix_matches_the_same_databases(pattern: str) -> None:
    scope = Scope.of("a.1", distinct=True)
    scoped = compile_wildcard(scope.convert_pattern(DocumentEntry("f", "k", 1, pattern)))
    plain = compile_wildcard(pattern)
    for db in ("user", "users", "store_1", "store_", "xstore_1", "score", "ax", "dx", "azb", "a.b", "a"):
        assert scoped.matches(f"a.1_{db}") == plain.matches(db), db
        assert not scoped.matches(f"ab1_{db}")


def test_regex_with_several_anchors_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task = change_task(block_allow_list={"lists": {"do-dbs": ["~^a|^b"]}})
    assert "cannot be combined with the source's name as prefix" in refusal(tmp_path, capsys, task)
    assert import_files(tmp_path, task, "--keep-schema-names")[0].block_allow_list is not None


@pytest.mark.parametrize(
    ("keys", "start"),
    [
        ({"meta": {"binlog-name": "bin.000007", "binlog-pos": 1234}}, ("position", "", "bin.000007", 1234)),
        ({"meta": {"binlog-name": "bin.000007", "binlog-gtid": "0-1-5"}}, ("gtid", "0-1-5", "", 4)),
        ({}, ("now", "", "", 4)),
    ],
)
def test_incremental_task_starts_at_the_position_in_meta(
    tmp_path: Path, keys: dict[str, Any], start: tuple[Any, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    task = change_task(task_mode="incremental", mysql_instances=[{"source-id": "s-01", **keys}])
    (source,) = import_files(tmp_path, task, sources=1)[1].source
    assert (source.start.mode, source.start.gtid, source.start.file, source.start.offset) == start
    differs = "differs  task-mode" in capsys.readouterr().out
    assert differs == (start[0] == "now")


ALL_KNOBS = """
name: all-knobs
task-mode: full
is-sharding: true
shard-mode: optimistic
strict-optimistic-shard-mode: true
ignore-checking-items: [all]
meta-schema: dm_meta
enable-heartbeat: false
heartbeat-update-interval: 1
heartbeat-report-interval: 1
timezone: "+08:00"
case-sensitive: true
collation_compatible: strict
mariadb2tidb: {mode: auto}
online-ddl: false
online-ddl-scheme: gh-ost
shadow-table-rules: ["^_(.+)_(?:(?:new)|(?:gho))$"]
trash-table-rules: ["^_(.+)_(?:(?:ghc)|(?:del)|(?:old))$"]
clean-dump-file: true
ansi-quotes: true
remove-meta: false
experimental: {async-checkpoint-flush: true}
target-database:
  {host: t, port: 3306, user: u, password: "", max-allowed-packet: 1, session: {a: b}, security: {ssl-ca: /ca}}
black-white-list: {old: {ignore-dbs: [test], ignore-tables: [{db-name: a, tbl-name: "~^x"}]}}
mydumpers:
  m: {mydumper-path: x, threads: 3, chunk-filesize: "64", statement-size: 1, rows: 5000, where: "a", skip-tz-utc: true,
      extra-args: "-T a.b"}
loaders:
  l: {pool-size: 16, dir: d, sorting-dir-physical: s, import-mode: physical, on-duplicate: replace,
      on-duplicate-logical: error, on-duplicate-physical: none, disk-quota-physical: 1, checksum-physical: required,
      analyze: optional, range-concurrency: 1, compress-kv-pairs: "", pd-addr: a, security: {ssl-ca: a}}
syncers:
  s: {meta-file: "", worker-count: 8, batch: 50, queue-size: 1024, checkpoint-flush-interval: 30, compact: false,
      multiple-rows: false, max-retry: 1, auto-fix-gtid: true, enable-gtid: true, disable-detect: false,
      safe-mode: true, safe-mode-duration: 60s, enable-ansi-quotes: true, async-checkpoint-flush: true}
validators:
  v: {mode: fast, worker-count: 4, validate-interval: 10s, check-interval: 5s, row-error-delay: 30m,
      meta-flush-interval: 5m, batch-query-size: 100, max-pending-row-size: 500m, max-pending-row-count: 9}
mysql-instances:
- {source-id: s-01, meta: {binlog-name: a.1}, filter-rules: [], route-rules: [], expression-filters: [],
   black-white-list: old, mydumper-config-name: m, mydumper-thread: 2, loader-config-name: l, loader-thread: 4,
   syncer-config-name: s, syncer-thread: 9, validator-config-name: v}
"""
ALL_OF_A_SOURCE = """
enable: true
enable-gtid: true
auto-fix-gtid: true
relay-dir: r
meta-dir: m
flavor: mariadb
charset: utf8
enable-relay: true
relay-binlog-name: a.1
relay-binlog-gtid: ""
purge: {interval: 1, expires: 1, remain-space: 1}
checker: {check-enable: true, backoff-rollback: 5m0s, backoff-max: 5m0s}
tracer: {}
case-sensitive: true
filters:
- {schema-pattern: "*", table-pattern: "tmp*", events: [all], sql-pattern: ["^DROP"], action: Ignore}
from: {host: h, port: 1, user: u, password: "", max-allowed-packet: 1, session: {a: 1},
       security: {ssl-ca: /a, ssl-cert: /b, ssl-key: /c, cert-allowed-cn: [x], ssl-ca-bytes: z}}
source-id: s-01
server-id: 1
"""


def test_every_setting_of_dm_is_read_and_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:  # S4-52
    files = write(tmp_path, ALL_KNOBS, 1)
    Path(files[1]).write_text(ALL_OF_A_SOURCE, encoding="utf-8")
    out = tmp_path / "out"
    assert run(["dm", "import", *files, "--out", str(out), "--target-type", "mysql", "--output", "json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    replication = check_replication(out / "all-knobs.toml")
    assert replication.target is not None
    assert (replication.target.mode, replication.target.safe_mode) == ("ordered", "always")
    assert (replication.target.worker_count, replication.target.batch_rows) == (9, 50)
    assert replication.filters[0].table_pattern == "tmp*"
    assert (replication.validation.mode, replication.validation.max_pending_rows) == ("full", 9)
    (validated,) = replication.validation.source
    assert (validated.name, validated.host, validated.port, validated.rename_schema) == ("s-01", "h", 1, "")
    (source,) = read_feeder(out / "feeder" / "all-knobs.toml").source
    assert source.security.list_files() == validated.security.list_files() == ("/a", "/b", "/c")
    assert replication.target.security.ssl_ca == "/ca"
    assert (source.snapshot.threads, source.snapshot.chunk_rows) == (2, 5000)
    reported = {line["key"] for line in printed["lines"]}
    assert set(leaves(yaml.safe_load(ALL_OF_A_SOURCE))) - reported == set()
    assert set(leaves(yaml.safe_load(ALL_KNOBS))) - reported == {"mysql-instances[0].source-id"}


PARTS = ("filter-rules", "route-rules", "expression-filters")
WHOLE = ("purge", "checker", "tracer", "filters", "session", "experimental", "mariadb2tidb", "old", "meta")


def leaves(raw: Any, place: str = "") -> list[str]:
    """The keys of a document that must get a line: those with a plain value, and the sections in WHOLE."""
    if place.rpartition(".")[2] in WHOLE or place in ("loaders.l.security",):
        return [place]
    if isinstance(raw, dict):
        return [leaf for name, value in raw.items() for leaf in leaves(value, f"{place}.{name}" if place else name)
                if not name.endswith(("-config-name", "-white-list", *PARTS)) or name == place]  # fmt: skip
    if isinstance(raw, list) and raw and isinstance(raw[0], dict):
        return [leaf for number, value in enumerate(raw) for leaf in leaves(value, f"{place}[{number}]")]
    return [place]


@pytest.mark.long
@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("worker-count: 32", "worker-cuont: 32", "unknown key `syncers.global.worker-cuont`.*`worker-count`"),
        ("shard-mode:", "shard-mod:", "unknown key `shard-mod`.*did you mean `shard-mode`"),
        ("route-rules: [sale, store]", "route-rule: [sale]", "`mysql-instances.*route-rule`.*`route-rules`"),
        ("target-schema: store, target-table", "target-scheme: store, target-table", "did you mean `target-schema`"),
        ("do-dbs:", "do-db:", "did you mean `do-dbs`"),
        ("insert-value-expr", "insert-value-exp", "did you mean `insert-value-expr`"),
        ("port: 4000", "prot: 4000", "did you mean `port`"),
        ("worker-count: 32", "worker-count: many", "`syncers.global.worker-count` must be a whole number"),
        ("worker-count: 32", "worker-count: 0", "`target.worker-count`"),
        ("compact: true", "compact: 1", "must be true or false"),
        ("1m30s", "90", "'90' is not a duration"),
        ("route-rules: [sale, store]", "route-rules: [sales]", "names the rule 'sales'.*known: sale, store"),
        ("syncer-config-name: global", "syncer-config-name: all", "`syncers` has no 'all'.*known: global"),
        ("task-mode: all", "task-mode: dump", "task-mode 'dump' has no counterpart"),
        ("source-id: s-02", "source-id: s-03", "no source file with the source-id 's-03'"),
        ("source-id: s-02", "source-id: s-01", "two instances have the source-id"),
        ("id % 2 = 0", "id % 2 = (", "expression"),
        ("[drop database,", "[dorp database,", "did you mean `drop database`"),
        ("name: Shards", "name: 9", "does not begin with a letter"),
        ("name: Shards", "name: Shards\nname: Twice", "the key `name` is given twice"),
        ("name: Shards", "", "`name` is missing"),
        ("routes:", "routes: [", "not valid YAML"),
    ],
)
def test_invalid_setting_is_one_line_that_names_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, words: str
) -> None:  # S4-52
    assert old in TASK
    error = refusal(tmp_path, capsys, TASK.replace(old, new))
    assert error.count("\n") == 1
    assert "task.yaml" in error
    with pytest.raises(ConfigError, match=words):
        raise ConfigError(error)


@pytest.mark.parametrize("other", ["s-01_b", "S-01"])
def test_sources_with_ambiguous_database_names_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], other: str
) -> None:
    files = write(tmp_path, TASK.replace("s-02", other))
    Path(files[2]).write_text(SOURCE.format(name=other, number=2))
    assert run(["dm", "import", *files, "--out", str(tmp_path / "out")]) == 1
    assert "would begin alike" in capsys.readouterr().err
    assert run(["dm", "import", *files, "--out", str(tmp_path / "out"), "--keep-schema-names"]) == 0


def test_source_file_without_instance_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no instance of the source 's-02'" in refusal(tmp_path, capsys, one_instance())


DATABASES = ("user", "test_1", "mytest", "account", "x", "log1", "mysql")
LISTS: dict[str, dict[str, Any]] = {
    "named": {"do-dbs": ["~^test.*", "user"], "ignore-dbs": ["account"],
              "do-tables": [{"db-name": "~^test.*", "tbl-name": "~^t.*"}, {"db-name": "user", "tbl-name": "info"}]},
    "without": {"ignore-dbs": ["account", "~^log[0-9]", "~my"],
                "ignore-tables": [{"db-name": "user", "tbl-name": "log"}, {"db-name": "user", "tbl-name": "t*"},
                                  {"db-name": "x", "tbl-name": "~fo$"}]},
    "tables": {"ignore-tables": [{"db-name": "user", "tbl-name": "log"}]},
    "empty": {},
}  # fmt: skip


@pytest.mark.parametrize(
    ("first", "second"), [("named", "without"), ("named", "tables"), ("named", "empty"), ("without", "tables")]
)
def test_different_lists_of_instances_are_joined(tmp_path: Path, first: str, second: str) -> None:  # S4-52
    named = [{"source-id": "s-01", "block-allow-list": first}, {"source-id": "s-02", "block-allow-list": second}]
    both = Rules.of(import_files(tmp_path / "both", change_task(block_allow_list=LISTS, mysql_instances=named))[0])
    for source, lists in (("s-01", first), ("s-02", second)):
        own = [{"source-id": "s-01", "block-allow-list": lists}]
        task = change_task(block_allow_list=LISTS, mysql_instances=own)
        alone = Rules.of(import_files(tmp_path / source, task, sources=1)[0])
        for db in DATABASES:
            for table in ("info", "log", "t1", "logs", ""):
                kept = both.keeps(f"{source}_{db}", table)
                assert kept == alone.keeps(db, table), (source, db, table)


def test_lists_that_cannot_be_joined_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lists = {"a": {"do-tables": [{"db-name": "x", "tbl-name": "y"}]},
             "b": {"ignore-tables": [{"db-name": "y*", "tbl-name": "z"}]}}  # fmt: skip
    named = [{"source-id": "s-01", "block-allow-list": "a"}, {"source-id": "s-02", "block-allow-list": "b"}]
    task = change_task(block_allow_list=lists, mysql_instances=named)
    assert "is a pattern in an ignore-list, while another instance has do-tables" in refusal(tmp_path, capsys, task)


def test_existing_files_are_overwritten_only_with_force(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import_files(tmp_path, TASK)
    file = tmp_path / "out" / "shards.toml"
    file.write_text("mine")
    capsys.readouterr()
    again = ["dm", "import", *write(tmp_path, TASK), "--out", str(tmp_path / "out")]
    assert run(again) == 1
    assert "already exists" in capsys.readouterr().err
    assert file.read_text() == "mine"
    assert run([*again, "--force"]) == 0
    assert check_replication(file).name == "shards"


@pytest.mark.parametrize(("text", "value"), [("60s", 60), ("1m30s", 90), ("1.5h", 5400), ("200ms", 0.2), ("0s", 0)])
def test_go_durations_are_parsed(text: str, value: float) -> None:
    assert parse_duration(DocumentEntry("f", "k", 1, text)) == pytest.approx(value)


def test_written_toml_sections_are_read_back_unchanged() -> None:
    values = {"a": 1, "b": {"c": "x", "d": {"e": [1, 2]}, "list": [{"x": {"y": "z"}}, {"x": {}}]}, "e": {}, "f": []}
    assert tomllib.loads(to_toml_sections(values)) == values
