"""Creates the format of each protocol from its options.

Avro and Canal-JSON are here; every other protocol is an entry point of the group `binlake.protocols`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib.metadata import entry_points

from binlake.config.protocols import AvroOptions, CanalJsonOptions, Options
from binlake.errors import ConfigError
from binlake.feed.avro import AvroFormat
from binlake.feed.canaljson import CanalJsonFormat
from binlake.feed.formats import Format

GROUP = "binlake.protocols"
"""Entry points: the protocol's name, and a class that takes the protocol's options."""


def format_of(options: Options) -> Format:
    """The format for `options`. Raises ConfigError if this installation lacks the protocol."""
    match options:
        case AvroOptions():
            return AvroFormat(options)
        case CanalJsonOptions():
            return CanalJsonFormat(options)
    return _load_format(options.protocol)(options)


@functools.cache
def _load_format(protocol: str) -> Callable[[Options], Format]:
    for point in entry_points(group=GROUP, name=protocol):
        loaded: Callable[[Options], Format] = point.load()
        return loaded
    raise ConfigError(
        f"this installation has no protocol {protocol}",
        where={"group": GROUP},
        hint="install Binlake again: its entry points are missing",
    )
