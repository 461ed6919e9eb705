"""Settings that the replications of a folder share: `_defaults.toml` beside their files.

Rule: a file says what differs. Its sections are laid over those of the defaults key by key, and a value, also a list,
replaces the default one whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from binlake.base.tomlfile import read_toml
from binlake.errors import ConfigError

NAME = "_defaults.toml"


def read_defaults(folder: Path) -> dict[str, Any]:
    """The shared settings of the files in `folder`; empty if it has none. Raises ConfigError."""
    path = folder / NAME
    try:
        found = read_toml(path)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigError(f"the defaults cannot be read: {error.strerror}", where={"file": path}) from None
    if "name" in found:
        raise ConfigError(
            "defaults of all replications name one", where={"file": path}, hint="give each file its own `name`"
        )
    return found


def lay_over(defaults: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """`own` and, of `defaults`, what it does not have."""
    both = {
        key: lay_over(defaults[key], value) for key, value in own.items() if _are_sections(defaults.get(key), value)
    }
    return {**defaults, **own, **both}


def _are_sections(default: object, own: object) -> bool:
    return isinstance(default, Mapping) and isinstance(own, Mapping)
