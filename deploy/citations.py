"""Parts of papers that code, tests and pages cite: each has its line on docs/reference/cited.md, and is in the paper.

The papers lie beside a checkout in `../shared`; a reader of the repository alone has the page.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

PAGE = Path("docs/reference/cited.md")
_NUMBERED = r"(?:DESIGN|tidb-binlog|data-migration-and-ticdc|airflow-spark-delta)"
_CITED = re.compile(rf'\b{_NUMBERED}\s+\d+(?:\.\d+)?\b|\bstack facts,\s+"[^"]+"')
_INVARIANT = re.compile(r"DESIGN 3\.\d+")
"""On the page of promises."""


def parts_in(text: str) -> list[str]:
    """The parts that `text` cites, spelled alike."""
    found = re.sub(r"\n[ \t]*(?:#|--|//|\*)?[ \t]*", " ", text)
    return [" ".join(part.split()) for part in _CITED.findall(found)]


def unlisted(root: Path, files: Iterable[Path]) -> list[str]:
    """`file: part` of each that is cited and not on the page."""
    known = set(parts_in((root / PAGE).read_text(encoding="utf-8")))
    return sorted(
        {
            f"{file.relative_to(root)}: {part}"
            for file in files
            for part in parts_in(file.read_text(encoding="utf-8"))
            if part not in known and not _INVARIANT.fullmatch(part)
        }
    )


def missing(root: Path, papers: Path) -> list[str]:
    """Parts on the page that the papers in the folder `papers` do not have."""
    return [part for part in _listed(root) if not _is_there(part, papers)]


def missing_ids(page: Path, papers: Path) -> list[str]:
    """Ids of the page of promises that the papers in `papers` do not have."""
    text = "".join((papers / name).read_text(encoding="utf-8") for name in ("MISSION.md", "reference/hazards.md"))
    ids = re.findall(r"^\| ((?:S\d|R|C|U)-\d{2}) \|", page.read_text(encoding="utf-8"), re.MULTILINE)
    return [one for one in ids if not re.search(rf"\b{one}\b", text)]


def _listed(root: Path) -> Iterator[str]:
    for line in (root / PAGE).read_text(encoding="utf-8").splitlines():
        if line.startswith("| "):
            yield from parts_in(line.split("|")[1])


def _is_there(part: str, papers: Path) -> bool:
    if part.startswith("stack facts"):
        title = part.partition('"')[2].rstrip('"')
        return title in (papers / "reference" / "stack-facts.md").read_text(encoding="utf-8")
    name, number = part.split()
    paper = papers / "DESIGN.md" if name == "DESIGN" else papers / "reference" / f"{name}.md"
    return re.search(rf"^#+ {re.escape(number)}[. ]", paper.read_text(encoding="utf-8"), re.MULTILINE) is not None
