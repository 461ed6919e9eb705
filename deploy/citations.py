"""Checks the cited parts of papers: docs/reference/cited.md must list each, and the paper must contain it.

The papers are in `../shared`, next to a checkout; readers who have only the repository use the page.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

PAGE = Path("docs/reference/cited.md")
SUMMARIES = Path("docs/understand/sources.md")
"""What each part says, in a section with its name."""
_NUMBERED = r"(?:DESIGN|tidb-binlog|data-migration-and-ticdc|airflow-spark-delta)"
_CITED = re.compile(rf'\b{_NUMBERED}\s+\d+(?:\.\d+)?\b|\bstack facts,\s+"[^"]+"')
_INVARIANT = re.compile(r"DESIGN 3\.\d+")
"""Listed on the page of promises instead."""


def find_cited_parts(text: str) -> list[str]:
    """The parts that `text` cites, in a uniform spelling."""
    unwrapped = re.sub(r"\n[ \t]*(?:#|--|//|\*)?[ \t]*", " ", text)
    return [" ".join(part.split()) for part in _CITED.findall(unwrapped)]


def find_unlisted(root: Path, files: Iterable[Path]) -> list[str]:
    """`file: part` for each cited part that the page does not list."""
    known = set(find_cited_parts((root / PAGE).read_text(encoding="utf-8")))
    return sorted(
        {
            f"{file.relative_to(root)}: {part}"
            for file in files
            for part in find_cited_parts(file.read_text(encoding="utf-8"))
            if part not in known and not _INVARIANT.fullmatch(part)
        }
    )


def find_unexplained(root: Path) -> list[str]:
    """Parts on the page that have no section among the summaries, and sections of parts that are not on the page."""
    text = (root / SUMMARIES).read_text(encoding="utf-8")
    sections = set(re.findall(r"^### (.+)$", text, re.MULTILINE))
    return sorted(set(_read_listed_parts(root)) ^ sections)


def find_missing(root: Path, papers: Path) -> list[str]:
    """Parts on the page that the papers in the folder `papers` do not contain."""
    return [part for part in _read_listed_parts(root) if not _is_there(part, papers)]


def find_missing_ids(page: Path, papers: Path) -> list[str]:
    """Ids on the page of promises that the papers in `papers` do not contain."""
    text = "".join((papers / name).read_text(encoding="utf-8") for name in ("MISSION.md", "reference/hazards.md"))
    ids = re.findall(r"^\| ((?:S\d|R|C|U)-\d{2}) \|", page.read_text(encoding="utf-8"), re.MULTILINE)
    return [one for one in ids if not re.search(rf"\b{one}\b", text)]


def _read_listed_parts(root: Path) -> Iterator[str]:
    for line in (root / PAGE).read_text(encoding="utf-8").splitlines():
        if line.startswith("| "):
            yield from find_cited_parts(line.split("|")[1])


def _is_there(part: str, papers: Path) -> bool:
    if part.startswith("stack facts"):
        title = part.partition('"')[2].rstrip('"')
        return title in (papers / "reference" / "stack-facts.md").read_text(encoding="utf-8")
    name, number = part.split()
    paper = papers / "DESIGN.md" if name == "DESIGN" else papers / "reference" / f"{name}.md"
    return re.search(rf"^#+ {re.escape(number)}[. ]", paper.read_text(encoding="utf-8"), re.MULTILINE) is not None
