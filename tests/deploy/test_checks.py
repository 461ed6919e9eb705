"""The checks of `make lint` find the faults that they are meant to find."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy import checks, citations


def test_unknown_id_is_named_with_file_and_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "docs" / "reference").mkdir(parents=True)
    (tmp_path / "binlake").mkdir()
    promises = tmp_path / "docs" / "reference" / "promises.md"
    # Assembled here, because otherwise the check would read these lines as citations.
    known, unknown = "R-" + "01", "R-" + "99"
    promises.write_text(f"## Hazards\n\n| {known} | a hazard |\n")
    (tmp_path / "binlake" / "a.py").write_text(f"# {known}\n\n# {unknown}\n")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_a.py").write_text(f"# {known}\n")
    monkeypatch.setattr(checks, "ROOT", tmp_path)
    monkeypatch.setattr(checks, "PROMISES", promises)
    with pytest.raises(checks.CheckError, match=f"binlake/a.py:3: {unknown}") as found:
        checks.check_ids()
    assert known not in str(found.value)


def test_outdated_reference_page_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "configuration.md"
    monkeypatch.setattr(checks, "REFERENCE", page)
    with pytest.raises(checks.CheckError, match="make docs"):
        checks.check_reference()
    page.write_text(checks.render_configuration())
    checks.check_reference()
    page.write_text(checks.render_configuration() + "\nmore\n")
    with pytest.raises(checks.CheckError, match="make docs"):
        checks.check_reference()
    page.write_text(checks.render_configuration())
    tables = tmp_path / "lake-tables.md"
    tables.write_text(checks.TABLES.read_text().replace("UTC day of commit_ts", "some day", 1))
    monkeypatch.setattr(checks, "TABLES", tables)
    with pytest.raises(checks.CheckError, match=r"lake-tables\.md is out of date"):
        checks.check_reference()


def test_generated_modules_match_the_proto_files(monkeypatch: pytest.MonkeyPatch) -> None:
    checks.check_generated()
    monkeypatch.setattr(checks, "_list_committed", lambda: ["binlake/wire/pump_pb2.py", "binlake/wire/gone_pb2.py"])
    with pytest.raises(checks.CheckError, match="gone_pb2"):
        checks.check_generated()


def test_make_targets_exist_and_have_a_description() -> None:
    text = (checks.ROOT / "Makefile").read_text(encoding="utf-8")
    targets = {line.partition(":")[0] for line in text.splitlines() if "  ## " in line}
    assert targets >= {
        "help", "setup", "demo", "test", "captures", "bench-window", "bench", "lint", "proto", "docs", "stop", "clean",
    }  # fmt: skip
    phony = next(line for line in text.splitlines() if line.startswith(".PHONY:"))
    assert targets <= set(phony.split())


def test_every_check_prints_its_result(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        raise checks.CheckError("what is wrong")

    monkeypatch.setattr(checks, "CHECKS", {"good": lambda: None, "bad": fails})
    assert checks.main([]) == 1
    told = capsys.readouterr()
    assert "lint: good: ok" in told.out
    assert "lint: bad: what is wrong" in told.err
    monkeypatch.setattr(checks, "CHECKS", {"good": lambda: None})
    assert checks.main([]) == 0


def test_test_files_with_one_name_are_listed(tmp_path: Path) -> None:
    for path in ("tests/rows/test_a.py", "tests/lake/test_b.py", "tests/lake/test_a.py"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    with pytest.raises(checks.CheckError, match=r"lake/test_a\.py, tests/rows/test_a\.py: rename"):
        checks.check_test_names(tmp_path / "tests")
    (tmp_path / "tests/rows/test_a.py").rename(tmp_path / "tests/rows/test_c.py")
    checks.check_test_names(tmp_path / "tests")


def test_cited_part_without_a_section_is_found_and_a_section_that_nobody_lists(tmp_path: Path) -> None:
    page, summaries = tmp_path / citations.PAGE, tmp_path / citations.SUMMARIES
    for one in (page, summaries):
        one.parent.mkdir(parents=True)
    # Assembled here, because otherwise the check would read these lines as citations.
    listed, other = "DESIGN " + "1", "DESIGN " + "77"
    page.write_text(f"| {listed} | folders |\n| {other} | none |\n")
    summaries.write_text(f"### {listed}\n\nFolders.\n")
    assert citations.find_unexplained(tmp_path) == [other]
    summaries.write_text(f"### {listed}\n### {other}\n### More\n")
    assert citations.find_unexplained(tmp_path) == ["More"]


def test_functions_named_make_are_listed() -> None:
    code = "def make_row(): ...\nclass A:\n    def _make_key(self): ...\n    def remake_it(self): ...\n"
    assert checks.find_made_names(code) == ["make_row", "_make_key"]


def test_public_class_that_two_files_define_is_named_with_both() -> None:
    sources = {
        "a.py": "class Row:\n    class Own: ...\nclass _Part: ...\n",
        "b.py": "class Row(A): ...\nclass _Part: ...\n",
    }
    assert checks.find_repeated_classes(sources) == ["Row: a.py, b.py"]
    assert checks.find_repeated_classes({"a.py": sources["a.py"]}) == []
