"""The format of each protocol, by its options."""

from __future__ import annotations

from binlake.config.protocols import Options
from binlake.feed.avro.format import AvroFormat
from binlake.feed.formats import Format


def format_of(options: Options) -> Format:
    """The format that `options` belong to."""
    return AvroFormat(options)
