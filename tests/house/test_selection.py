"""Which tests a quick run selects, and the order of the other tests."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support import examples
from support.selection import is_costly_as_a_whole
from support.sharing import TOGETHER, scope_of

pytest_plugins = ["pytester"]
ROOT = Path(__file__).resolve().parents[2]

CONFTEST = """
from support import selection
def pytest_collection_modifyitems(items):
    selection.mark_by_fixtures(items)
    selection.{order}(items)
"""
FILES = {
    "test_a": "def test_quick(): ...",
    "test_b": "import pytest\n@pytest.fixture\ndef mariadb(): ...\ndef test_plain(): ...\ndef test_asks(mariadb): ...",
    "test_c": "import pytest\npytestmark = [pytest.mark.spark, pytest.mark.e2e]\ndef test_all(): ...",
}


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("cheapest_first", ["test_quick", "test_plain", "test_asks", "test_all"]),
        ("dearest_file_first", ["test_all", "test_plain", "test_asks", "test_quick"]),
    ],
)
def test_cost_of_a_test_is_that_of_its_dearest_requirement(
    pytester: pytest.Pytester, order: str, expected: list[str]
) -> None:
    pytester.makeconftest(CONFTEST.format(order=order))
    pytester.makepyfile(**FILES)
    told = pytester.runpytest("--collect-only", "-q", "-p", "no:cacheprovider").outlines
    assert [line.partition("::")[2] for line in told if "::" in line] == expected


@pytest.mark.parametrize(
    ("body", "expected"), [("...", 20), ("assert server == 'MySQL'", 40)], ids=["alike", "told apart"]
)
def test_each_case_runs_on_one_server_unless_the_test_tells_them_apart(
    pytester: pytest.Pytester, body: str, expected: int
) -> None:
    cases = 20
    pytester.makeconftest("""
from support import servers
from support.servers import pytest_generate_tests
def pytest_collection_modifyitems(items):
    servers.leave_other_server_to_soak(items)
""")
    pytester.makepyfile(f"""
import pytest
@pytest.fixture
def server(): ...
@pytest.mark.parametrize("case", range({cases}))
def test_one(server, case): {body}
""")
    chosen, left = (_collect(pytester, "-m", marks) for marks in ("not soak", "soak"))
    assert len(chosen) == expected
    assert chosen | left == {(name, str(case)) for name in ("mariadb", "mysql") for case in range(cases)}
    assert {case for _, case in chosen} == set(map(str, range(cases)))
    # No server is left out, so that both are tested before every merge.
    assert {name for name, _ in chosen} == {"mariadb", "mysql"}


def _collect(pytester: pytest.Pytester, *options: str) -> set[tuple[str, str]]:
    """(server, case) of each test selected by `options`."""
    lines = pytester.runpytest("--collect-only", "-q", "-p", "no:cacheprovider", *options).outlines
    return {(found[1], found[2]) for line in lines if (found := re.search(r"\[(\w+)-(\d+)\]$", line))}


def test_spread_takes_this_runs_share_of_all_parts_of_a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [(n, f"case {n}") for n in range(20)]
    monkeypatch.setattr(examples, "_share", 4)
    assert [param.values for param in examples.spread(cases, least=2)] == [cases[n] for n in (0, 4, 8, 12, 16)]
    assert [param.values for param in examples.spread(cases[:3], least=2)] == [cases[0], cases[1]]
    assert [param.values for param in examples.spread(["a", "b"], least=5)] == [("a",), ("b",)]
    monkeypatch.setattr(examples, "_share", 1)
    assert [param.values for param in examples.spread(cases, least=2)] == cases


@pytest.mark.parametrize(
    ("source", "costly"),
    [
        ("import pytest\npytestmark = pytest.mark.spark\n", True),
        ("import pytest\npytestmark = [pytest.mark.timeout(9), pytest.mark.process]\n", True),
        ("import pytest\npytestmark = pytest.mark.timeout(9)\n", False),
        ("import os\nfrom binlake_airflow.dags.factory import build_dag\n", True),
        ("def test_one():\n    from airflow.sdk import DAG\n", False),
        ("import pytest\n@pytest.mark.spark\ndef test_one(): ...\n", False),
    ],
)
def test_file_is_skipped_if_all_of_it_needs_a_server(tmp_path: Path, source: str, costly: bool) -> None:
    (tmp_path / "test_it.py").write_text(source)
    assert is_costly_as_a_whole(tmp_path / "test_it.py") is costly


def test_files_that_share_an_expensive_resource_run_in_one_process() -> None:
    assert scope_of("tests/dags/test_sync_dag.py::test_one[a::b]") == scope_of("tests/plugins/test_pages.py::test_two")
    assert scope_of("tests/spark_jobs/test_feed_states.py::test_one") != scope_of(
        "tests/spark_jobs/test_mirror.py::two"
    )
    assert scope_of("tests/rules/test_routes.py::test_one") == "tests/rules/test_routes.py"
    names = [begin.partition("::") for begin in TOGETHER]
    assert [path for path, _, name in names if not (ROOT / path).exists() or name not in _text_of(ROOT / path)] == []
    of_landing = (
        "tests/e2e/test_e2e_landing.py::test_window_ends_at_its_size_limit_and_the_next_continues_after_it[0-9]"
    )
    assert scope_of(of_landing) == scope_of("tests/spark_jobs/test_audit.py::test_one") == "spark"


def test_one_process_starts_kafka_and_the_registry() -> None:
    # The annotations of the fixtures `kafka`, `schema_registry`, and of `make`, which uses both.
    asks = re.compile(r"\b(kafka: (KafkaBroker|SecuredKafka)|schema_registry: Apicurio|make: Make)\b")
    rooms = (ROOT / "tests" / room for room in ("feed", "spark_jobs"))
    paths = [path for room in rooms for path in room.rglob("test_*.py")]
    asking = {str(path.relative_to(ROOT)) for path in paths if asks.search(path.read_text(encoding="utf-8"))}
    assert asking == {path for path, scope in TOGETHER.items() if scope == "kafka"}


def _text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""
