"""What decides the shape of Avro messages: the words of the sink URI, with TiCDC's names and defaults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class AvroOptions:
    """`namespace`: the changefeed's; `extension`: the three fields of TiDB behind the columns (S2-08).

    `decimals`, `unsigned_bigints`: the handling modes (S2-31, S2-32). `floats`: FLOAT as the page's `double` or newer
    TiCDC's `float`; `extension_defaults`: newer TiCDC's defaults of the three fields (MISSION X-13). `time_zone`: that
    TIMESTAMP values are shown in.
    """

    namespace: str = "default"
    extension: bool = False
    decimals: Literal["precise", "string"] = "precise"
    unsigned_bigints: Literal["long", "string"] = "long"
    floats: Literal["double", "float"] = "double"
    extension_defaults: bool = False
    time_zone: str = "UTC"
