"""The parameters of a feed's sink URI, each read once.

Rule: an unknown parameter is an error that lists the known ones; nothing is ignored (MISSION S2-01, S2-35).
"""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import SplitResult, parse_qsl

from binlake.errors import ConfigError


class UriWords:
    """The parameters of a URI, each of which is read once."""

    def __init__(self, parts: SplitResult) -> None:
        pairs = parse_qsl(parts.query, keep_blank_values=True)
        self._left: dict[str, str] = dict(pairs)
        self._read: list[str] = []
        if len(pairs) != len(self._left):
            raise ConfigError(
                "a parameter of a sink URI is given twice", where={"parameters": join_names(n for n, _ in pairs)}
            )

    def read_text(self, name: str, default: str = "") -> str:
        """The parameter `name` as text."""
        self._read.append(name)
        return self._left.pop(name, default)

    def read_choice(self, name: str, allowed: tuple[str, ...], default: str) -> str:
        """The parameter as one of the `allowed` values. Raises ConfigError."""
        value = self.read_text(name, default)
        if value not in allowed:
            raise self._build_wrong_value_error(name, value, f"use one of {join_names(allowed)}")
        return value

    def read_boolean(self, name: str, default: bool) -> bool:
        """The parameter as a boolean, `true` or `false`. Raises ConfigError."""
        value = self.read_text(name, "true" if default else "false")
        if value not in ("true", "false"):
            raise self._build_wrong_value_error(name, value, "use true or false")
        return value == "true"

    def read_number(self, name: str, default: int, *, least: int, most: int | None = None) -> int:
        """The parameter as a whole number from `least` to `most`. Raises ConfigError."""
        value = self.read_text(name, str(default))
        if not value.isdecimal() or int(value) < least or (most is not None and int(value) > most):
            upto = "" if most is None else f" and at most {most}"
            raise self._build_wrong_value_error(name, value, f"use a whole number of at least {least}{upto}")
        return int(value)

    def require_all_read(self) -> None:
        """Raises ConfigError, naming the parameters that have not been read."""
        if self._left:
            raise ConfigError(
                "a sink URI has unknown parameters",
                where={"parameters": join_names(self._left)},
                hint=f"known here: {join_names(sorted(self._read))}",
            )

    def _build_wrong_value_error(self, name: str, value: str, hint: str) -> ConfigError:
        return ConfigError("a parameter of a sink URI has a wrong value", where={name: value}, hint=hint)


def join_names(names: Iterable[str]) -> str:
    """The names with commas."""
    return ", ".join(names)
