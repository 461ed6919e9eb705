"""`make mutate`: which changes it makes to a function, and that it reports changes which no test notices."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from deploy.mutation.operators import build_mutants
from deploy.mutation.results import ROOT, list_modules

CHANGED = [
    ("def f(a, b):\n    return a < b", ["return a < b -> return None", "a < b -> a <= b"]),
    ("def f(a, b):\n    if a and not b:\n        raise ValueError(f'{a > b}')", [
        "if a and (not b): -> if not (a and (not b)):", "a and (not b) -> a or not b", "not b -> b",
        "raise ValueError(f'{a > b}') -> pass",
    ]),
    ("def f(a):\n    log.info('x', n=a + 1)\n    a.append(True)", ["a.append(True) -> pass", "True -> False"]),
    ("class A:\n    @property\n    def f(self) -> 'int | None':\n        x: int = 3\n        return None", ["3 -> 4"]),
    ("def f(a, b=2):\n    a += 'x' + b\n    return [n for n in a if n is None]", [
        "a += 'x' + b -> pass", "return [n for n in a if n is None] -> return None", "n is None -> n is not None",
    ]),
    ("LIMIT = 3", []),
]  # fmt: skip


@pytest.mark.parametrize(("text", "changes"), CHANGED)
def test_each_mutant_changes_one_place_of_a_function(text: str, changes: list[str]) -> None:
    found = [f"{one.before} -> {one.after}" for one in build_mutants(text, "f.py")]
    assert sorted(found) == sorted(changes)


def test_equal_mutants_are_distinguished_and_keep_their_keys_when_lines_move() -> None:
    text = "def f(a):\n    return a[1] + a[1]"
    keys = [one.key for one in build_mutants(text, "f.py")]
    assert keys == [one.key for one in build_mutants(f"import os\n\n\n{text}", "f.py")]
    assert {"f: 1 -> 2", "f: 1 -> 2 #2"} <= set(keys)
    assert len(set(keys)) == len(keys)


@pytest.mark.long
def test_modules_tests_and_explanations_exist() -> None:
    assert list_modules()
    for module in list_modules():
        assert [test for test in module.tests if not (ROOT / test).is_file()] == []
        # By another name a second copy would be loaded and changed, which no test uses.
        assert not module.path.startswith(("pump_service/", "spark_jobs/"))
        keys = {one.key for one in build_mutants(module.text, module.path)}
        assert set(module.explained) - keys == set()


CODE = """
def clamp(value, least):
    if value < least:
        return least
    return value

def is_far(value):
    return value > 10
"""
TESTS = """
from decides import clamp, is_far
def test_clamp():
    assert [clamp(n, 2) for n in (1, 2, 3)] == [2, 2, 3]
def test_far():
    assert is_far(20) and not is_far(5)
"""


@pytest.mark.soak
def test_surviving_mutant_is_reported_until_a_test_kills_it(tmp_path: Path) -> None:
    lists = tmp_path / "deploy" / "mutation"
    lists.mkdir(parents=True)
    (tmp_path / "pytest.ini").write_text("[pytest]")
    (tmp_path / "decides.py").write_text(CODE)
    (tmp_path / "test_decides.py").write_text(TESTS)
    (tmp_path / "test_more.py").write_text("from decides import is_far\ndef test_more():\n    assert not is_far(10)\n")
    (lists / "modules.toml").write_text('"decides.py" = ["test_decides.py"]')
    (lists / "explained.toml").write_text('["decides.py"]\n"clamp: value < least -> value <= least" = "the same value"')

    def mutate() -> tuple[int, str]:
        command = [sys.executable, "-m", "deploy.mutation", "--root", str(tmp_path)]
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        return ended.returncode, ended.stdout + ended.stderr

    code, told = mutate()
    assert code == 1, told
    assert "decides.py: 6 mutants, 3 killed, 1 explained, 2 survive, 0 not tried" in told
    assert "decides.py:8 is_far\n    - value > 10\n    + value >= 10" in told
    (tmp_path / "test_decides.py").write_text(TESTS.replace("not is_far(5)", "is_far(11) and not is_far(5)"))
    code, told = mutate()
    assert "4 killed, 1 explained, 1 survive, 0 not tried" in told
    # An existing test in another file kills it.
    (lists / "modules.toml").write_text('"decides.py" = ["test_decides.py", "test_more.py"]')
    code, told = mutate()
    assert code == 0, told
    assert "5 killed, 1 explained, 0 survive, 0 not tried" in told
    assert "passed" in told
    # All mutants are already killed, so no test runs.
    code, told = mutate()
    assert (code, "passed" in told) == (0, False)
    # A test that fails without any mutant does not count as a killer.
    (tmp_path / "test_decides.py").write_text(TESTS.replace("is_far(20)", "is_far(2)"))
    (tmp_path / "decides.py").write_text(CODE.replace("10", "9"))
    assert mutate()[0] == 2
