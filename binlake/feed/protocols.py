"""Creates the format of each protocol from its options."""

from __future__ import annotations

from binlake.config.protocols import (
    AvroOptions,
    CanalJsonOptions,
    CsvOptions,
    DebeziumOptions,
    OpenProtocolOptions,
    Options,
    PbOptions,
    SlaveBinlogOptions,
)
from binlake.feed.avro.format import AvroFormat
from binlake.feed.canaljson import CanalJsonFormat
from binlake.feed.csvformat import CsvFormat
from binlake.feed.debezium.format import DebeziumFormat
from binlake.feed.formats import Format
from binlake.feed.openprotocol import OpenProtocolFormat
from binlake.feed.pbbinlog import PbBinlogFormat
from binlake.feed.slavebinlog import SlaveBinlogFormat


def format_of(options: Options) -> Format:
    """The format for `options`."""
    match options:
        case AvroOptions():
            return AvroFormat(options)
        case CanalJsonOptions():
            return CanalJsonFormat(options)
        case CsvOptions():
            return CsvFormat(options)
        case OpenProtocolOptions():
            return OpenProtocolFormat(options)
        case DebeziumOptions():
            return DebeziumFormat(options)
        case SlaveBinlogOptions():
            return SlaveBinlogFormat(options)
        case PbOptions():
            return PbBinlogFormat(options)
