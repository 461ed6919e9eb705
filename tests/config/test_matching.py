"""`config check --against source` shows the tables that each rule matches, and warns of a rule that matches none."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from support.replication_files import write_replication

from binlake.cluster.control.config import SourceConfigCommand
from binlake.config.matching import match_rules, select_own_tables
from binlake.config.model import Replication
from binlake.errors import SourceUnavailable
from binlake.pump_service.statusport import StatusJobs, StatusServer
from binlake.testkit.captures.capture import Capture
from binlake.testkit.replay.recorded import Outcomes, RecordedMvcc

TABLES = [("shop_1", "orders"), ("shop_1", "log_a"), ("Shop_2", "orders"), ("test", "order_items"), ("test", "tmp_x")]
KAFKA = "kafka://127.0.0.1:9092/t?protocol=canal-json"
FIRST, SECOND, ITEMS = "shop_1.orders", "Shop_2.orders", "test.order_items"


def pair(db: str, table: str) -> dict[str, str]:
    return {"db-name": db, "tbl-name": table}


def block(**lists: Any) -> dict[str, Any]:
    return {"block-allow-list": {key.replace("_", "-"): value for key, value in lists.items()}}


def event(schema: str, table: str = "") -> dict[str, Any]:
    rule = {"schema-pattern": schema, "table-pattern": table, "events": ["delete"], "action": "Ignore"}
    return {"filters": [rule], "filter": {"ignore-table": [pair("test", "~.")]}}


def route(schema: str, table: str = "") -> dict[str, Any]:
    return {"routes": [{"schema-pattern": schema, "table-pattern": table, "target-schema": "all"}]}


def expression(db: str, table: str) -> dict[str, Any]:
    return {"expression-filter": [{"schema": db, "table": table, "insert-value-expr": "a = 1"}]}


def feed(*rules: str, **more: Any) -> dict[str, Any]:
    return {"feed": [{"name": "f", "sink-uri": KAFKA, "rules": list(rules), **more}]}


def topic(matcher: str) -> dict[str, Any]:
    return feed("*.*", dispatchers=[{"matcher": [matcher], "topic": "t"}])


@pytest.mark.parametrize(
    ("settings", "place", "found"),
    [
        ({"filter": {"replicate-do-db": "shop"}}, "filter.replicate-do-db", []),
        ({"filter": {"replicate-do-db": "shop.1"}}, "filter.replicate-do-db", ["shop_1.log_a", FIRST]),
        ({"filter": {"replicate-do-db": "shop_*"}}, "filter.replicate-do-db", []),
        ({"filter": {"replicate-do-table": [pair("shop_2", "~^ORD")]}}, "filter.replicate-do-table", [SECOND]),
        ({"filter": {"ignore-schemas": "mysql, tests"}}, "filter.ignore-schemas", []),
        ({"filter": {"ignore-table": [pair("test", "tmp_*")]}}, "filter.ignore-table", []),
        ({"filter": {"ignore-table": [pair("test", "~tmp_")]}}, "filter.ignore-table", ["test.tmp_x"]),
        (block(do_dbs=["shop_*"]), "block-allow-list.do-dbs", [SECOND, "shop_1.log_a", FIRST]),
        (block(do_dbs=["~^shop[[:digit:]]+$"]), "block-allow-list.do-dbs", []),
        (block(ignore_dbs=["shop"]), "block-allow-list.ignore-dbs", []),
        (block(do_tables=[pair("shop_?", "orders")]), "block-allow-list.do-tables", [SECOND, FIRST]),
        (block(ignore_tables=[pair("shop_[3-9]", "orders")]), "block-allow-list.ignore-tables", []),
        (event("shop_1"), "filters", ["shop_1.log_a", FIRST]),
        (event("shop_*", "log_?"), "filters", ["shop_1.log_a"]),
        (event("test"), "filters", []),
        (route("shop_*", "order"), "routes", []),
        (route("SHOP_*", "order*"), "routes", [SECOND, FIRST]),
        (expression("shop_2", "ORDERS"), "expression-filter", [SECOND]),
        (expression("shop_%", "orders"), "expression-filter", []),
        (feed("test.*", r"!test.order\_items"), "feed f: rules", [ITEMS, "test.tmp_x", ITEMS]),
        (feed("# a comment", "/^shop[[:digit:]]+$/.orders"), "feed f: rules", []),
        ({**feed("shop_1.*"), **route("shop_*")}, "feed f: rules", []),
        ({**feed("all.orders"), **route("shop_*")}, "feed f: rules", ["all.orders"]),
        (topic("test.order?items"), "feed f: dispatchers.matcher", [ITEMS]),
        (topic("test.item"), "feed f: dispatchers.matcher", []),
        ({"target": {"tables": [pair("shop_1", "orders")]}, **route("shop_*")}, "target.tables", []),
        ({"target": {"tables": [pair("all", "orders")]}, **route("shop_*")}, "target.tables", ["all.orders"]),
    ],
)  # fmt: skip
def test_each_rule_has_the_tables_that_its_own_grammar_matches(
    settings: dict[str, Any], place: str, found: list[str]
) -> None:
    replication = Replication.model_validate({"name": "demo", "lake": {"path": "/lake"}, **settings})
    matches = match_rules(replication, TABLES)
    assert [f"{db}.{table}" for m in matches if m.place == place for db, table in m.tables] == found
    assert place in {match.place for match in matches}


def test_defaults_are_no_rules_and_hide_the_servers_own_tables() -> None:
    replication = Replication.model_validate({"name": "demo", "lake": {"path": "/lake"}})
    assert match_rules(replication, TABLES) == []
    assert select_own_tables(replication, [*TABLES, ("mysql", "user")]) == sorted(TABLES)
    every = Replication.model_validate({"name": "demo", "lake": {"path": "/lake"}, "filter": {"ignore-schemas": ""}})
    assert ("mysql", "user") in select_own_tables(every, [("mysql", "user")])


@pytest.fixture
def serve() -> Iterator[Callable[[Sequence[dict[str, Any]]], str]]:
    """The status address of a TiDB with these finished DDL jobs."""
    with ExitStack() as stack:
        yield (
            lambda jobs: (
                stack.enter_context(
                    StatusServer({}, StatusJobs(jobs), RecordedMvcc(Outcomes([]), {}), lambda: 1 << 62)
                ).url
            )
        )


def check(file: Path) -> int:
    """The exit status of `binlake config check FILE --against source`."""
    command, parser = SourceConfigCommand(), argparse.ArgumentParser()
    command.add_arguments(parser)
    return command.run(parser.parse_args(["check", str(file), "--against", "source"]))


def test_check_against_a_recorded_source_names_the_rules_that_match_nothing(
    serve: Callable[[Sequence[dict[str, Any]]], str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capture = Capture(Path(__file__).parents[1] / "captures" / "shard")
    source, lists = f'status-url = "{serve(list(capture.read_jobs()))}"', 'replicate-do-db = "~^shard_, sharde"'
    file = write_replication(
        tmp_path, "demo", source=source, filter=lists, feeds=[f'name = "own"\nsink-uri = "{KAFKA}"']
    )
    other = tmp_path / "feeds" / "demo" / "other.toml"
    other.parent.mkdir(parents=True)
    other.write_text(f'name = "other"\nsink-uri = "{KAFKA}"\nrules = ["sharde.*"]\n')
    other.chmod(0o600)
    assert check(file) == 0
    shown = capsys.readouterr()
    first, second = (line for line in shown.err.splitlines() if line.startswith("warning: "))
    assert first.startswith("warning: filter.replicate-do-db: the pattern `sharde` matches no table of the source ")
    assert f"[file={file}]. Hint: correct it" in first
    assert second.startswith("warning: feed other: rules: the pattern `sharde.*` matches no replicated table")
    assert f"[file={other}]" in second
    assert "8 of 8 tables of the source are replicated" in shown.out


def test_check_against_a_source_without_tables_compares_nothing(
    serve: Callable[[Sequence[dict[str, Any]]], str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_replication(tmp_path, "demo", source=f'status-url = "{serve([])}"', filter='replicate-do-db = "a"')
    assert check(file) == 0
    assert "no rule was compared: the source has no table yet" in capsys.readouterr().err


def test_check_against_a_source_that_does_not_answer_fails(tmp_path: Path) -> None:
    file = write_replication(tmp_path, "demo", source='status-url = "http://127.0.0.1:1"\ntimeout-s = 0.5')
    with pytest.raises(SourceUnavailable):
        check(file)
