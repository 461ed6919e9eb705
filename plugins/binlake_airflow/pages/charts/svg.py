"""Writes elements: every attribute and text is escaped, every number is finite.

Positions across are shares of the width (percent), so that texts keep their size on a phone and on a wall.
"""

from __future__ import annotations

from collections.abc import Mapping

from markupsafe import Markup, escape

Attributes = Mapping[str, str | float]


def make_tag(name: str, attributes: Attributes, *children: str) -> Markup:
    """An element. A child that is not Markup is text, and escaped."""
    written = "".join(f' {key}="{escape(_format(value))}"' for key, value in attributes.items())
    return Markup(f"<{name}{written}>{join_tags(*children)}</{name}>")  # all parts are escaped above


def join_tags(*parts: str) -> Markup:
    """The parts in order; what is not Markup is escaped."""
    return Markup("").join(parts)


def format_share(share: float) -> str:
    """A share of the width, 0 to 1."""
    return f"{100 * share:.3f}%"


def _format(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:.2f}".rstrip("0").rstrip(".")
