"""The format of each protocol, by its options."""

from __future__ import annotations

from binlake.config.protocols import CanalJsonOptions, CsvOptions, Options
from binlake.feed.avro.format import AvroFormat
from binlake.feed.canaljson import CanalJsonFormat
from binlake.feed.csvformat import CsvFormat
from binlake.feed.formats import Format


def format_of(options: Options) -> Format:
    """The format that `options` belong to."""
    match options:
        case CanalJsonOptions():
            return CanalJsonFormat(options)
        case CsvOptions():
            return CsvFormat(options)
        case _:
            return AvroFormat(options)
