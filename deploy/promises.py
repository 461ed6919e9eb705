"""Checks that the page of promises is complete: it lists every id of each part, and a test cites each kept promise.

A promise without a test is on the page too, with how it is kept or which issue will build it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

PAGE = Path("docs/reference/promises.md")
ID = re.compile(r"\b(?:S[0-9]|R|C|U)-[0-9]{2}\b|\bDESIGN 3\.[0-9]+\b")
_RANGE = re.compile(r"\b((?:S[0-9]|R|C|U)-|DESIGN 3\.)([0-9]+) to (?:(?:S[0-9]|R|C|U)-|DESIGN 3\.|3\.)?([0-9]+)\b")
_PART = re.compile(r"^\| \w+ \| ([^|]+ to [^|]+) \|", re.MULTILINE)
_ROW = re.compile(rf"^\| ({ID.pattern}) \|", re.MULTILINE)
_UNTESTED = ("Without a test", "Not built yet")
"""Sections whose ids no test covers."""


@dataclass(frozen=True)
class Promises:
    """The ids of the page: `all_parts` according to its first table, `kept` with a test, `untested` without."""

    all_parts: tuple[str, ...]
    kept: tuple[str, ...]
    untested: tuple[str, ...]


def read_page(text: str) -> Promises:
    """The ids on the page."""
    kept: list[str] = []
    untested: list[str] = []
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        (untested if section.startswith(_UNTESTED) else kept).extend(_ROW.findall(section))
    parts = (one for part in _PART.findall(text) for one in sorted(find_cited_ids(part)))
    return Promises(tuple(parts), tuple(kept), tuple(untested))


def find_cited_ids(text: str) -> set[str]:
    """The ids that `text` names; `S0-19 to S0-21` names three."""
    return {*ID.findall(text), *_expand_ranges(text)}


def _expand_ranges(text: str) -> Iterator[str]:
    for prefix, first, last in _RANGE.findall(text):
        yield from (f"{prefix}{number:0{len(first)}d}" for number in range(int(first), int(last) + 1))


def find_problems(page: Promises, cited_by_tests: set[str]) -> list[str]:
    """What the page leaves out or claims wrongly, one line each."""
    listed = Counter((*page.kept, *page.untested))
    return [
        *(f"{one}: left out" for one in page.all_parts if one not in listed),
        *(f"{one}: listed {count} times" for one, count in listed.items() if count > 1),
        *(f"{one}: no test cites it" for one in page.kept if one not in cited_by_tests),
        *(f"{one}: a test cites it, but it is listed as untested" for one in page.untested if one in cited_by_tests),
    ]


def read_cited_ids(files: Iterable[Path]) -> set[str]:
    """The ids that the files name."""
    return {one for file in files for one in find_cited_ids(file.read_text(encoding="utf-8"))}


def find_missing(papers: str, page: Promises) -> list[str]:
    """Ids of the mission's text `papers` that the page lacks (hazards have gaps)."""
    listed = {*page.kept, *page.untested}
    return sorted(one for one in find_cited_ids(papers) if one[0] not in "RD" and one not in listed)
