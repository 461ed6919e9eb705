"""The documentation site is built strictly and is searchable, and the quick checks of `make lint` find faults."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from deploy import citations, docslinks

ROOT = Path(__file__).resolve().parents[2]
PAPERS = ROOT.parent / "shared"


def build_site(root: Path) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).parent / "zensical"
    return subprocess.run(
        [program, "build", "--strict", "--clean"], cwd=root, capture_output=True, text=True, check=False
    )


@pytest.fixture
def house(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    for name in ("zensical.toml", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


@pytest.mark.long
def test_site_is_built_and_searchable(house: Path) -> None:  # S0-76, S2-40
    done = build_site(house)
    assert done.returncode == 0, done.stdout + done.stderr
    site = house / ".local" / "site"
    found = json.dumps(json.loads((site / "search.json").read_text(encoding="utf-8")))
    assert "start/why.html" in found
    assert "A pump was bound to its TiDB server" in found
    assert "understand/consumers.html" in found
    assert "An accepted change does not upgrade your programs" in found
    assert len(list(site.rglob("*.html"))) == len(list((house / "docs").rglob("*.md"))) + 1  # and 404


@pytest.mark.long
def test_dead_links_are_found_by_lint_and_build(house: Path) -> None:
    assert docslinks.find_dead_links(house) == []
    page = house / "docs" / "index.md"
    links = "[a](nowhere.md) [a](start/why.md#nowhere) [a](../README.md)"
    page.write_text(f"{page.read_text(encoding='utf-8')}\n{links}\n", encoding="utf-8")
    assert [found.partition(": ")[2] for found in docslinks.find_dead_links(house)] == [
        "nowhere.md", "start/why.md#nowhere", "../README.md",
    ]  # fmt: skip
    done = build_site(house)
    assert done.returncode != 0
    assert "3 issues found" in done.stdout + done.stderr


def test_page_missing_in_the_sites_navigation_is_found(house: Path) -> None:
    assert docslinks.find_unlisted(house) == []
    (house / "docs" / "operate" / "more.md").write_text("# More\n")
    (house / "docs" / "start" / "why.md").unlink()
    decisions = house / "docs" / "understand" / "decisions"
    (decisions / "999-more.md").write_text("# 999. More\n")
    next(decisions.glob("111-*.md")).rename(decisions / "111-moved.md")
    assert [page[:24] for page in docslinks.find_unlisted(house)] == [
        "operate/more.md", "start/why.md", "understand/decisions/111", "understand/decisions/111",
        "understand/decisions/999",
    ]  # fmt: skip


def test_paragraph_in_a_table_is_found(house: Path) -> None:
    page = house / "docs" / "index.md"
    page.write_text(f"| a | b |\n|---|---|\n| c | {'word ' * 100} |\n")
    assert docslinks.find_long_cells(house) == ["docs/index.md:3"]


def test_citations_across_line_ends_are_read_and_unknown_ones_named(house: Path) -> None:
    cited = "DESIGN" + " 9, tidb-binlog\n# 99.1, stack" + ' facts, "Nothing", DESIGN' + " 3.1, tidb-binlog 2.5"
    file = house / "a.py"
    file.write_text(f"# {cited}\n")
    assert citations.find_unlisted(house, [file]) == [
        "a.py: DESIGN" + " 9", "a.py: stack" + ' facts, "Nothing"', "a.py: tidb-binlog" + " 99.1",
    ]  # fmt: skip


@pytest.mark.long
@pytest.mark.skipif(not PAPERS.is_dir(), reason="the papers are not next to this checkout")
def test_part_or_id_missing_in_the_papers_is_named(house: Path) -> None:
    page, promises = house / citations.PAGE, house / "docs" / "reference" / "promises.md"
    assert citations.find_missing(house, PAPERS) == citations.find_missing_ids(promises, PAPERS) == []
    page.write_text(page.read_text() + "| tidb-binlog" + " 99.1 | nothing |\n")
    promises.write_text(promises.read_text() + "| R-" + "99 | nothing |\n")
    assert citations.find_missing(house, PAPERS) == ["tidb-binlog" + " 99.1"]
    assert citations.find_missing_ids(promises, PAPERS) == ["R-" + "99"]
