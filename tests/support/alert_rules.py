"""The shipped alert rules and Grafana boards: which series they select.

Also which series statsd_exporter makes of a StatsD name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from deploy.grafana.boards import BOARDS, list_queries

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "prometheus"
_SELECTOR = re.compile(r"\b([a-zA-Z_:][\w:]*)\b(?!\s*\()(?:\{([^}]*)\})?")
_GROUPING = re.compile(r"\b(?:by|on|without|ignoring)\s*\([^)]*\)")
_WORDS = {"and", "or", "unless", "offset"}

Series = tuple[str, frozenset[str]]
"""A metric's name and label matchers, as `label="value"`."""


def rules(group: str) -> dict[str, str]:
    """The expression of each alert of `group`."""
    found = next(one for one in _read("binlake.rules.yml")["groups"] if one["name"] == group)
    return {rule["alert"]: rule["expr"] for rule in found["rules"]}


def find_missing_series(group: str, shown: Iterable[Series]) -> dict[str, list[Series]]:
    """By alert of `group`, the series that it selects and that `shown` lacks; alerts that lack none are left out."""
    return _find_missing(rules(group), shown)


def find_missing_on_board(name: str, shown: Iterable[Series]) -> dict[str, list[Series]]:
    """By chart of the board `name`, the series that it asks for and that `shown` lacks."""
    return _find_missing(list_queries(next(board for board in BOARDS if board.name == name)), shown)


def _find_missing(expressions: dict[str, str], shown: Iterable[Series]) -> dict[str, list[Series]]:
    known = list(shown)
    asked = {name: _select_series(expression) for name, expression in expressions.items()}
    assert asked
    assert all(asked.values())
    missed = {name: [one for one in series if not _is_among(one, known)] for name, series in asked.items()}
    return {name: series for name, series in missed.items() if series}


def series_of(statsd_name: str) -> Series:
    """The name and labels under which the shipped mapping exports `statsd_name`."""
    for mapping in _read("statsd-mapping.yml")["mappings"]:
        pattern = re.escape(mapping["match"]).replace(r"\*", r"([^.]+)")
        if match := re.fullmatch(pattern, statsd_name):
            name, *values = (
                re.sub(r"\$(\d)", lambda part: match[int(part[1])], text)
                for text in (mapping["name"], *mapping["labels"].values())
            )
            return name, frozenset(f'{key}="{value}"' for key, value in zip(mapping["labels"], values, strict=True))
    raise AssertionError(f"nothing maps {statsd_name}")


def _is_among(wanted: Series, shown: Iterable[Series]) -> bool:
    return any(wanted[0] == name and wanted[1] <= labels for name, labels in shown)


def _select_series(expression: str) -> set[Series]:
    # Brackets after a metric hold a duration; quotes hold label values.
    text = re.sub(r"\[\w+\]", "", _GROUPING.sub("", expression))
    outside = [(name, labels or "") for name, labels in _SELECTOR.findall(text) if name not in _WORDS]
    return {(name, frozenset(part.strip() for part in labels.split(",") if part)) for name, labels in outside}


@cache
def _read(name: str) -> dict[str, Any]:
    return dict(yaml.safe_load((FOLDER / name).read_text(encoding="utf-8")))
