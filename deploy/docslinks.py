"""Checks that links and paths on documentation pages exist, and that the site lists each page.

`make docs-site` takes seconds to build; this check takes milliseconds, so that `make lint` can always run it.
"""

from __future__ import annotations

import re
import tomllib
import unicodedata
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ELSEWHERE = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "bench/README.md")
"""Pages outside docs/, read in the repository."""
DECISIONS = "understand/decisions.md"
"""The page below docs/ with a table of all decisions: a line is the number, the link to its page, and the date."""
LONGEST_CELL = 350
"""Most characters of a table cell: a longer one is a paragraph, which is hard to read in a column."""

_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
_FENCED = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`\n]*`")
_PATH = re.compile(r"`((?:binlake|pump_service|spark_jobs|plugins|dags|deploy|tests|bench|sql|proto)/[\w./*-]*)`")
_FILE = re.compile(r"`(\w+\.(?:py|proto))`")
_DRAWN = re.compile(r"(?<![\w/])([\w/]+\.py)\b")
_DECISION = re.compile(r"\| (\d+) \| \[.+\]\((decisions/(\d{3})-[a-z0-9-]+\.md)\) \| \d{4}-\d\d-\d\d( or before)? \|")
_HEADING = re.compile(r"^#{1,6} +(.+?) *#*$", re.MULTILINE)


def find_dead_links(root: Path) -> list[str]:
    """`page: link` for each link that leads nowhere, or from a page of the site to a file outside it."""
    return [
        f"{page.relative_to(root)}: {link}"
        for page in _list_pages(root)
        for link in _find_links(page)
        if not _is_valid(root, page, link)
    ]


def find_merge_marks(root: Path) -> list[str]:
    """`page:line` for each line that git left of a conflict."""
    return [
        f"{page.relative_to(root)}:{number}"
        for page in _list_pages(root)
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1)
        if line.startswith(("<<<<<<< ", ">>>>>>> "))
    ]


def find_unlisted(root: Path) -> list[str]:
    """Pages of docs/ that `nav` of zensical.toml does not name, and entries of `nav` without a page.

    The page DECISIONS names each decision once.
    """
    site = tomllib.loads((root / "zensical.toml").read_text(encoding="utf-8"))["project"]
    named = Counter([*_list_entries(site["nav"]), *_list_decisions(root)])
    there = {str(page.relative_to(root / "docs")) for page in (root / "docs").rglob("*.md")}
    return sorted({*(there ^ named.keys()), *(name for name, times in named.items() if times > 1)})


def _list_decisions(root: Path) -> list[str]:
    lines = (root / "docs" / DECISIONS).read_text(encoding="utf-8").splitlines()
    found = (_DECISION.fullmatch(line) for line in lines)
    return [f"understand/{line[2]}" for line in found if line is not None and int(line[1]) == int(line[3])]


def find_dead_paths(root: Path) -> list[str]:
    """`page:line: path` for each named file or folder of the repository that is missing; `*` matches any name.

    A drawing may name a file by the end of its path.
    """
    files = [path for room in _list_folders(root) for path in room.rglob("*.*")]
    known = {path.name for path in files}
    drawn = [
        f"{page.relative_to(root)}:{number}: {path}"
        for page in sorted((root / "docs").rglob("*.svg"))
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1)
        for path in _DRAWN.findall(line)
        if not any(f"/{file.as_posix()}".endswith(f"/{path}") for file in files)
    ]
    return drawn + [
        f"{page.relative_to(root)}:{number}: {path}"
        for page in _list_pages(root)
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1)
        for path in [
            *(path for path in _PATH.findall(line) if not any(root.glob(path.rstrip("/")))),
            *(name for name in _FILE.findall(line) if name not in known),
        ]
    ]


def _list_folders(root: Path) -> list[Path]:
    return [folder for folder in root.iterdir() if folder.is_dir() and not folder.name.startswith(".")]


def find_long_cells(root: Path) -> list[str]:
    """`page:line` of each table cell that holds a paragraph."""
    too_long = []
    for page in _list_pages(root):
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
            cells = re.split(r"(?<!\\)\|", line)[1:-1] if line.startswith("|") else []
            too_long += [f"{page.relative_to(root)}:{number}" for cell in cells if len(cell.strip()) > LONGEST_CELL]
    return too_long


def _list_entries(nav: list[Any]) -> Iterator[str]:
    for entry in nav:
        if isinstance(entry, str):
            yield entry
            continue
        for value in entry.values():
            yield from _list_entries([value] if isinstance(value, str) else value)


def _list_pages(root: Path) -> list[Path]:
    return [*sorted((root / "docs").rglob("*.md")), *(root / name for name in ELSEWHERE if (root / name).exists())]


def _find_links(page: Path) -> list[str]:
    text = _CODE.sub("", _FENCED.sub("", page.read_text(encoding="utf-8")))
    return [link for link in _LINK.findall(text) if not re.match(r"[a-z]+:", link)]


def _is_valid(root: Path, page: Path, link: str) -> bool:
    path, _, heading = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    docs = root / "docs"
    if page.is_relative_to(docs) and not target.is_relative_to(docs):
        return False
    if not target.is_file():
        return target.is_dir() and not page.is_relative_to(docs)
    return not heading or heading in _list_anchors(target)


def _list_anchors(page: Path) -> frozenset[str]:
    """The ids that Markdown gives to the headings of `page`."""
    seen: Counter[str] = Counter()
    for heading in _HEADING.findall(_FENCED.sub("", page.read_text(encoding="utf-8"))):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").replace("*", "")
        ascii_only = unicodedata.normalize("NFKD", plain).encode("ascii", "ignore").decode()
        slug = re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", ascii_only).strip().lower())
        seen[slug if slug not in seen else f"{slug}_{seen[slug]}"] += 1
    return frozenset(seen)
