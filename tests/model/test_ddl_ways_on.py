"""An operator's remedies for a DDL that cannot run on the target: another statement, or none; and the open window."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from ddlstory import Story, replaced, rules
from deltalake import write_deltalake
from modelwindow import CLUSTER, NAME, Statements
from support.mariadb import MariaDb, execute, rows
from support.windows import target_of

from binlake.config.servers import TargetSection
from binlake.ddl.ddls import add_injections, plan_ddls, require_replacements_used
from binlake.ddl.definitions import LandedDdl
from binlake.errors import CheckpointConflict, ConfigError, Drift, Permanent, TargetRefused
from binlake.lake.paths import LakePaths
from binlake.lake.windowlog import WindowLog
from binlake.rows.schema import SchemaState
from binlake.rules import Rules
from binlake.statements import Phase
from binlake.target import apply_window, read_position
from binlake.target.commands.ddl import DdlCommand
from binlake.window.cuts import require_pinned_cuts, require_pinned_texts
from binlake.window.manifest import ApplyManifest

pytestmark = pytest.mark.mariadb

LAST = 1 << 62


@pytest.fixture
def target(mariadb: MariaDb) -> Iterator[TargetSection]:
    mariadb.wipe()
    yield target_of(mariadb)
    mariadb.wipe()


def finalize(target: TargetSection, statements: Statements) -> Any:
    return apply_window(target, statements.manifest, statements.checked(statements.manifest))


def test_the_target_runs_the_replacement_and_later_rows_are_applied(mariadb: MariaDb, target: TargetSection) -> None:
    # S4-46, U-15: the source's history stays as it was; the target has an additional index, and another default
    story = Story()
    own = "ALTER TABLE t ADD COLUMN w INT(11) NULL DEFAULT 5, ADD INDEX by_w (w);"
    converter = story.converter(**replaced(story.ddl_ts, own))
    planned = plan_ddls(SchemaState(), story.log.ddls, story.log.jobs, converter.rules)
    assert [ddl.decision for ddl in planned] == ["apply", "apply", "replaced"]
    assert "schema history keeps the source's" in planned[-1].alert
    assert [c.name for c in planned[-1].after.tables[0].columns] == ["id", "v", "w"]
    statements = converter.convert(0, LAST, target, "safe")
    result = finalize(target, statements)
    assert (result.ddls, result.replaced, result.ignored) == (3, 1, [])
    assert rows(mariadb, "SELECT * FROM d.t ORDER BY id") == [(1, "a", 5), (2, "b", 5), (3, "c", 7)]
    assert rows(mariadb, "SHOW INDEX FROM d.t WHERE Key_name = 'by_w'")


def _crash(target: TargetSection, statements: Statements, step: str) -> None:
    """Crash an attempt to apply when it passes `step` for the third time."""

    class Crash(Exception):
        pass

    passes = iter(range(100))

    def hook(passed: str) -> None:
        if passed == step and next(passes) == 2:
            raise Crash

    with pytest.raises(Crash):
        apply_window(target, statements.manifest, statements, hook=hook)


def _apply_with_a_crash(target: TargetSection, statements: Statements, step: str) -> None:
    """Apply; the first attempt crashes, the second one succeeds."""
    _crash(target, statements, step)
    assert apply_window(target, statements.manifest, statements).state == "applied"


@pytest.mark.parametrize("step", ["intent", "ddl_executed", "ddl_done"])
def test_a_crash_around_a_replacement_runs_it_once(mariadb: MariaDb, target: TargetSection, step: str) -> None:
    # the result of the statement is not known, only whether anything changed
    story = Story()
    own = "ALTER TABLE t ADD COLUMN w INT, ADD COLUMN own INT"
    statements = story.converter(**replaced(story.ddl_ts, own)).convert(0, story.ddl_ts, target, "safe")
    _apply_with_a_crash(target, statements, step)
    assert [name for name, *_ in rows(mariadb, "SHOW COLUMNS FROM d.t")] == ["id", "v", "w", "own"]


OWN = {
    "alter": "ALTER TABLE t ADD COLUMN w INT, ADD COLUMN own INT",
    "index": "CREATE INDEX own ON t (v)",
    "untried": "ALTER TABLE t ADD CONSTRAINT f FOREIGN KEY (id) REFERENCES d.u (id)",
    "drop": "DROP TABLE u",
}


@pytest.mark.parametrize("own", OWN)
@pytest.mark.parametrize("step", ["intent", "ddl_executed"])
def test_a_change_by_someone_else_does_not_count_as_the_replacement(
    mariadb: MariaDb, target: TargetSection, step: str, own: str
) -> None:
    story = Story()
    execute(mariadb, "CREATE DATABASE d", "CREATE TABLE d.u (id INT PRIMARY KEY)")
    statements = story.converter(**replaced(story.ddl_ts, OWN[own])).convert(0, story.ddl_ts, target, "safe")

    _crash(target, statements, step)
    meddled = "d.u" if own == "drop" and step == "intent" else "d.t"
    execute(mariadb, f"ALTER TABLE {meddled} COMMENT = 'theirs'")
    if own == "drop" and step == "ddl_executed":
        assert apply_window(target, statements.manifest, statements).state == "applied"
        return
    with pytest.raises(Permanent, match="nothing proves that this is its result") as stopped:
        apply_window(target, statements.manifest, statements)
    # The remedy in the hint works.
    assert "set ddl_state in tidb_binlog.binlake_progress to 'done'" in stopped.value.hint
    execute(mariadb, f"UPDATE tidb_binlog.binlake_progress SET ddl_state = '{'done' if step != 'intent' else ''}'")
    assert apply_window(target, statements.manifest, statements).state == "applied"
    if own == "alter":
        assert [name for name, *_ in rows(mariadb, "SHOW COLUMNS FROM d.t")] == ["id", "v", "w", "own"]


def injected(*entries: tuple[int, str]) -> dict[str, Any]:
    return {"ddl-injection": [{"commit-ts": str(ts), "sql": sql, "db": "d"} for ts, sql in entries]}


def test_an_injected_statement_runs_before_the_changes_of_its_commit_ts(
    mariadb: MariaDb, target: TargetSection
) -> None:
    # U-15: one before the source's own DDL of the same commit_ts, one between two transactions, two of one commit_ts
    story = Story()
    row_ts = max(commit_ts for commit_ts, *_ in story.log.rows)
    own = injected((story.ddl_ts, "CREATE INDEX by_v ON t (v)"), (row_ts, "ALTER TABLE d.t ADD INDEX by_w (w);"),
                   (row_ts, "ALTER TABLE t DROP INDEX by_v"))  # fmt: skip
    converter = story.converter(**own)
    planned = add_injections(plan_ddls(SchemaState(), story.log.ddls, story.log.jobs, converter.rules),
                              converter.rules.injections, 0, LAST, 0)  # fmt: skip
    assert [ddl.decision for ddl in planned] == ["apply", "apply", "injected", "apply", "injected", "injected"]
    assert [ddl.segment for ddl in planned] == [1, 2, 3, 4, 5, 6]
    assert planned[2].touched == ["d.t"]
    assert "ddl-injection" in planned[2].alert
    statements = converter.convert(0, LAST, target, "safe")
    seen: list[tuple[str, str]] = []

    def hook(passed: str) -> None:
        if passed == "ddl_done":
            [(text,)] = rows(mariadb, "SELECT checkPoint FROM tidb_binlog.checkpoint")
            seen.append((str(json.loads(text)["commitTS"]), ",".join(sorted(_indexes(mariadb)))))

    result = apply_window(target, statements.manifest, statements, hook=hook)
    assert (result.ddls, result.injected, result.replaced) == (6, 3, 0)
    # DESIGN 3.8: after an injected statement, its commit_ts is not replicated yet.
    assert seen[2:] == [(str(story.ddl_ts - 1), "PRIMARY,by_v"), (str(story.ddl_ts), "PRIMARY,by_v"),
                        (str(row_ts - 1), "PRIMARY,by_v,by_w"), (str(row_ts - 1), "PRIMARY,by_w")]  # fmt: skip
    assert rows(mariadb, "SELECT id, w FROM d.t ORDER BY id") == [(1, None), (2, None), (3, 7)]


def _indexes(server: MariaDb) -> set[str]:
    names = rows(server, "SELECT index_name FROM information_schema.statistics WHERE table_schema = 'd'")
    return {name for (name,) in names}


@pytest.mark.parametrize("step", ["intent", "ddl_executed", "ddl_done"])
def test_a_crash_around_an_injected_statement_runs_it_once(mariadb: MariaDb, target: TargetSection, step: str) -> None:
    # U-15, R-04
    story = Story()
    own = injected((story.ddl_ts, "CREATE INDEX own ON t (v)"))
    statements = story.converter(**own).convert(0, story.ddl_ts, target, "safe")
    _apply_with_a_crash(target, statements, step)
    assert _indexes(mariadb) == {"PRIMARY", "own"}
    assert [name for name, *_ in rows(mariadb, "SHOW COLUMNS FROM d.t")] == ["id", "v", "w"]


def test_injected_statements_are_pinned_with_their_window(target: TargetSection) -> None:
    # U-15, DESIGN 3.7: one more or one less makes another window; the target's refusal stops it like that of any DDL
    story = Story()
    plain = story.converter().convert(0, LAST, target, "safe")
    converter = story.converter(**injected((story.ddl_ts, "ALTER TABLE t ADD COLUMN v INT")))
    own = converter.convert(0, LAST, target, "safe")
    cuts, more = (_cuts(story, rules) for rules in (Rules(), converter.rules))
    with pytest.raises(CheckpointConflict, match="another statement for a DDL.*commit_ts=" + str(story.ddl_ts)):
        require_pinned_texts(more, ddls(own), ddls(plain))
    # One removed: the pin of the last segment is not in plans with fewer segments.
    with pytest.raises(
        CheckpointConflict, match=rf"with segments that differ.*sealed=5 now=4.*at={story.ddl_ts}"
    ) as taken:
        require_pinned_cuts(own.manifest, [ddl.since for ddl in cuts])
    assert "restore the configuration" in taken.value.hint
    with pytest.raises(CheckpointConflict, match=r"another statement for a DDL.*segment=4"):
        require_pinned_texts(cuts, ddls(plain), ddls(own))
    with pytest.raises(TargetRefused, match=r"an injected statement failed: .*Duplicate column") as refused:
        finalize(target, own)
    # Its commit_ts is that of a change of the source, which must not be left out with it.
    assert "change or remove this `ddl-injection`" in refused.value.hint
    assert "ignore-txn-commit-ts" not in refused.value.hint
    for wrong in ("DELETE FROM t", "DROP TABLE a; DROP TABLE b"):
        with pytest.raises(ConfigError, match="the injection is not one DDL statement"):
            rules(**injected((1, wrong)))


def test_a_moved_injection_makes_another_window(target: TargetSection) -> None:
    # U-15, DESIGN 3.7: the same statement elsewhere, with rows of other segments after it
    story = Story()
    sql = "CREATE INDEX own ON t (v)"
    first, last = (pick(commit_ts for commit_ts, *_ in story.log.rows) for pick in (min, max))
    here, there = (story.converter(**injected((ts, sql))) for ts in (first, last - 1))
    sealed = here.convert(0, LAST, target, "safe").manifest
    moved = [ddl.since for ddl in _cuts(story, there.rules)]
    require_pinned_cuts(sealed, [ddl.since for ddl in _cuts(story, here.rules)])
    with pytest.raises(CheckpointConflict, match=rf"with segments that differ.*sealed=5 now=5.*at={first}, {last - 1}"):
        require_pinned_cuts(ApplyManifest.from_json(sealed.to_json()), moved)
    # A window that was sealed without the positions, and opened, is finished as before.
    older = replace(sealed, cuts=())
    assert "cuts" not in older.to_json()
    require_pinned_cuts(ApplyManifest.from_json(older.to_json()), moved)
    with pytest.raises(CheckpointConflict, match="with segments that differ"):
        require_pinned_cuts(older, moved[:-1])


def _cuts(story: Story, own: Rules) -> list[LandedDdl]:
    planned = plan_ddls(SchemaState(), story.log.ddls, story.log.jobs, own)
    return add_injections(planned, own.injections, 0, LAST, 0)


def test_an_error_of_the_operators_own_statement_is_never_ignored(mariadb: MariaDb, target: TargetSection) -> None:
    story = Story()
    statements = story.converter(**replaced(story.ddl_ts, "ALTER TABLE t ADD COLUMN v INT")).convert(
        0, LAST, target, "safe"
    )
    with pytest.raises(
        TargetRefused, match=r"the replacement of a DDL failed: .*Duplicate column.*its statement was not"
    ):
        finalize(target, statements)
    assert rows(mariadb, "SELECT COUNT(*) FROM d.t") == [(2,)]


def test_a_window_stuck_at_a_refused_ddl_is_released_and_continues_with_the_replacement(
    mariadb: MariaDb, target: TargetSection, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # S4-46, U-15, DESIGN 3.7, 3.11: pinned until an operator gives the window up, if the DDL had no effect
    story = Story(tail=" SPARSELY")
    config = written(tmp_path, target)
    first = story.converter().convert(0, LAST, target, "safe")
    with pytest.raises(TargetRefused, match=f"a DDL failed.*ddl_commit_ts={story.ddl_ts}.*SPARSELY"):
        finalize(target, first)
    window_state = shown(capsys, "show", "--replication", config)
    assert (window_state["commit_ts"], window_state["state"]) == (str(story.ddl_ts), "intent")
    assert "SPARSELY" in window_state["pinned"]
    assert window_state["what"].startswith("unknown")
    second = story.converter(**replaced(story.ddl_ts, "ALTER TABLE t ADD COLUMN w INT(11) NULL COMMENT 'own'"))
    cuts = plan_ddls(SchemaState(), story.log.ddls, story.log.jobs, second.rules)
    anew = second.convert(0, LAST, target, "safe")
    with pytest.raises(CheckpointConflict, match="another statement for a DDL.*commit_ts=" + str(story.ddl_ts)):
        require_pinned_texts(cuts, ddls(anew), ddls(first))
    require_pinned_texts(cuts, ddls(anew), ddls(anew))
    with pytest.raises(CheckpointConflict, match="is not blocked by that DDL"):
        binlake_ddl("release", "--replication", config, "--commit-ts", "77")
    execute(mariadb, "ALTER TABLE d.t ADD COLUMN half INT")
    with pytest.raises(CheckpointConflict, match="not in its state before the DDL"):
        binlake_ddl("release", "--replication", config, "--commit-ts", str(story.ddl_ts))
    execute(mariadb, "ALTER TABLE d.t DROP COLUMN half")
    release = ("release", "--replication", config, "--commit-ts", str(story.ddl_ts))
    output = shown(capsys, *release)
    assert output["next_window_from"] == str(story.ddl_ts - 1)
    with pytest.raises(CheckpointConflict, match="no window is open"):
        binlake_ddl(*release)
    (event,) = WindowLog(LakePaths(str(tmp_path / "lake" / NAME))).read_events(stage="release")
    assert (event["state"], json.loads(event["detail"])["ddl_commit_ts"]) == ("released", str(story.ddl_ts))
    position = read_position(target, NAME, CLUSTER)
    assert (position.window, position.commit_ts, position.forms) == (None, story.ddl_ts - 1, "safe")
    result = finalize(target, second.convert(story.ddl_ts - 1, LAST, target, position.forms))
    assert (result.replaced, rows(mariadb, "SELECT COUNT(*) FROM d.t")) == (1, [(3,)])
    assert binlake_ddl("show", "--replication", config) == 3


def test_ddl_of_one_commit_ts_are_distinguished_and_those_that_ran_do_not_run_again(
    target: TargetSection, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # U-15, DESIGN 3.11: the injection ran, the DDL of the same commit_ts was refused
    story, own = Story(tail=" SPARSELY"), "CREATE INDEX own ON t (v)"
    config = written(tmp_path, target)
    with open(config, "a") as file:
        file.write(f'[[ddl-injection]]\ncommit-ts = "{story.ddl_ts}"\nsql = "{own}"\ndb = "d"\n')
    statements = story.converter(**injected((story.ddl_ts, own))).convert(0, LAST, target, "safe")
    with pytest.raises(TargetRefused, match="SPARSELY"):
        finalize(target, statements)
    lines = [(b.segment, int(b.phase), b.kind) for b in statements.written if b.phase == Phase.DDL]
    segments, phases, kinds = (list(column) for column in zip(*lines, strict=True))
    table = {"window": [f"0-{LAST}"] * len(lines), "segment": segments, "phase": phases, "kind": kinds}
    write_deltalake(LakePaths(str(tmp_path / "lake" / NAME)).locate_table("statement"), pa.table(table))
    assert shown(capsys, "show", "--replication", config)["what"] == "a DDL of the source"
    output = shown(capsys, "release", "--replication", config, "--commit-ts", str(story.ddl_ts))
    assert f"from the configuration, or they run again: {own}" in output["next"]


def test_changes_are_reduced_within_a_segment_and_never_across_a_ddl() -> None:
    # S4-11: a row before ADD COLUMN and the same row after it are two net changes
    story = Story(again=True)
    statements = story.converter().convert(0, LAST, TargetSection(db_type="mariadb"), "safe")  # type: ignore[call-arg]
    writes = [(b.segment, b.rows) for b in statements.written if b.phase == Phase.WRITE]
    assert writes == [(2, 2), (3, 2)]


def test_a_replacement_must_be_one_ddl_for_a_ddl_that_would_run() -> None:
    story = Story()
    for sql, message in [("DELETE FROM t", "not one DDL"), ("DROP TABLE a; DROP TABLE b", "not one DDL"),
                      ("/* nothing */", "not one DDL"), ("ALTER TABLE t ADD 'x", "cannot be read")]:  # fmt: skip
        with pytest.raises(ConfigError, match=message):
            rules(**replaced(1, sql))
    with pytest.raises(ConfigError, match="two replacements"):
        rules(**{"ddl-replacement": 2 * replaced(1, "DROP TABLE t")["ddl-replacement"]})
    with pytest.raises(ConfigError, match="and replaced by ddl-replacement"):
        rules(**replaced(1, "DROP TABLE t"), filter={"ignore-txn-commit-ts": ["1"]})
    nowhere = rules(**replaced(story.ddl_ts + 1, "DROP TABLE t"))
    planned = plan_ddls(SchemaState(), story.log.ddls, story.log.jobs, nowhere)
    with pytest.raises(ConfigError, match=r"at which no DDL would run.*there is no DDL"):
        require_replacements_used(planned, nowhere.replacements, 0, LAST)
    require_replacements_used(planned, nowhere.replacements, 0, story.ddl_ts)


def test_an_ignored_ddl_changes_nothing_and_rows_wait_for_the_operator(
    mariadb: MariaDb, target: TargetSection
) -> None:  # S4-46 U-15
    story = Story()
    converter = story.converter(filter={"ignore-txn-commit-ts": [str(story.ddl_ts)]})
    converter.ignored = (story.ddl_ts,)
    statements = converter.convert(0, LAST, target, "safe")
    with pytest.raises(Drift, match="column w is missing"):
        finalize(target, statements)
    assert rows(mariadb, "SELECT COUNT(*) FROM d.t") == [(2,)]
    execute(mariadb, "ALTER TABLE d.t ADD COLUMN w INT(11)")
    finalize(target, statements)
    assert rows(mariadb, "SELECT id, w FROM d.t ORDER BY id") == [(1, None), (2, None), (3, 7)]


def test_without_sync_ddl_rows_wait_for_definitions_from_the_other_side(
    mariadb: MariaDb, target: TargetSection
) -> None:  # tidb-binlog 5.11, R-47
    story = Story()
    converter = story.converter(loopback={"sync-ddl": False})
    statements = converter.convert(0, LAST, target, "safe")
    assert ddls(statements) == []
    execute(mariadb, "CREATE DATABASE d", "CREATE TABLE d.t (id INT(11) PRIMARY KEY, v VARCHAR(64))")
    with pytest.raises(Drift, match="column w is missing"):
        finalize(target, statements)
    assert rows(mariadb, "SELECT * FROM d.t ORDER BY id") == [(1, "a"), (2, "b")]
    execute(mariadb, "ALTER TABLE d.t ADD COLUMN w INT(11)")
    assert finalize(target, statements).ddls == 0
    assert rows(mariadb, "SELECT * FROM d.t ORDER BY id") == [(1, "a", None), (2, "b", None), (3, "c", 7)]


def ddls(statements: Statements) -> list[Any]:
    return [batch for batch in statements.written if batch.phase == Phase.DDL]


def written(folder: Path, target: TargetSection) -> str:
    config = folder / "model.toml"
    config.write_text(
        f'name = "{NAME}"\n[lake]\npath = "{folder / "lake"}"\n[source]\ncluster-id = "{CLUSTER}"\n[target]\n'
        f'db-type = "mariadb"\nhost = "{target.host}"\nport = {target.port}\nuser = "{target.user}"\n'
    )
    return str(config)


def binlake_ddl(*arguments: str) -> int:
    parser, command = argparse.ArgumentParser(), DdlCommand()
    command.add_arguments(parser)
    return command.run(parser.parse_args(arguments))


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, str]:
    """The command's output after its log lines."""
    capsys.readouterr()
    assert binlake_ddl(*arguments, "--output", "json") == 0
    state: dict[str, str] = json.loads("{" + capsys.readouterr().out.partition("{")[2])
    return state
