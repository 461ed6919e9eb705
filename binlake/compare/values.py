"""Convert the values of every server to one canonical text per value and type (docs/understand/equality.md).

The rules: numbers by value, text and time as shown, bytes as upper-case hex, JSON as a value. Properties that a text
cannot show are reported and counted as exemptions.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from decimal import Decimal, InvalidOperation

from binlake.base.sql import Dialect
from binlake.compare.structure import parse_base_type
from binlake.errors import WireError

Raw = str | bytes | None
"""A value as a text-protocol client receives it: text, bytes for binary types, or NULL."""

FLOAT_DIGITS = "FLOAT shown in exponent form: 6 digits compared"
ZEROFILL = "ZEROFILL: compared without padding"
JSON_VALUE = "JSON: compared as a value, not as text"
LATIN1_TEXT = "text that is not UTF-8: compared as latin1"
JSON_DEEP = "JSON nested deeper than 31 levels: text that MariaDB's own JSON functions refuse"

_MARIADB_JSON_LEVELS = 31
_TEXTS = frozenset(("char", "varchar", "tinytext", "text", "mediumtext", "longtext"))


def decode_captured_value(value: object) -> Raw:
    """A value of a capture's `rows`: null, text or {"hex": ...}. Raises WireError."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, dict) and isinstance(value.get("hex"), str):
        return bytes.fromhex(value["hex"])
    raise WireError(f"not a value of a capture: {value!r}")


def as_latin1(column_type: str, raw: Raw) -> Raw:
    """The text of a recorded value of a text type that is not UTF-8 (`source.invalid-text`); others unchanged.

    Raises WireError for a text recorded as bytes that are UTF-8.
    """
    if not isinstance(raw, bytes) or parse_base_type(column_type) not in _TEXTS:
        return raw
    try:
        raw.decode()
    except UnicodeDecodeError:
        return "".join(map(_decode_latin1_byte, raw))
    raise WireError(f"a text recorded as bytes: {raw.hex()}", where={"type": column_type})


def _decode_latin1_byte(byte: int) -> str:
    """The letter of a byte in MySQL's latin1: windows-1252, or a control character if that leaves the byte
    undefined."""
    try:
        return bytes((byte,)).decode("cp1252")
    except UnicodeDecodeError:
        return chr(byte)


def build_canonical_converter(column_type: str) -> Callable[[Raw], str | None]:
    """The function that converts a value of `column_type` (as SHOW COLUMNS names it) to its canonical text."""
    rule = _RULES.get(parse_base_type(column_type), _format_text)

    def convert(raw: Raw) -> str | None:
        return None if raw is None else rule(raw)

    return convert


def list_exemptions(column_type: str, raw: Raw, dialect: Dialect = "mariadb") -> tuple[str, ...]:
    """The exemptions that apply to the recorded value `raw` on a target of `dialect`."""
    exemptions: list[str] = []
    kind = parse_base_type(column_type)
    if isinstance(raw, bytes) and kind in _TEXTS:
        exemptions.append(LATIN1_TEXT)
    if "zerofill" in column_type.lower():
        exemptions.append(ZEROFILL)
    if kind == "json":
        exemptions.append(JSON_VALUE)
        if dialect == "mariadb" and _compute_nesting_depth(json.loads(raw or "null")) > _MARIADB_JSON_LEVELS:
            exemptions.append(JSON_DEEP)
    if kind == "float" and isinstance(raw, str) and _is_in_exponent_form(float(raw)):
        exemptions.append(FLOAT_DIGITS)
    return tuple(exemptions)


def _compute_nesting_depth(value: object) -> int:
    """The nesting depth of arrays and objects: 0 for a scalar."""
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inside is None else 1 + max(map(_compute_nesting_depth, inside), default=0)


def _decode_ascii(raw: str | bytes) -> str:
    return raw if isinstance(raw, str) else raw.decode("ascii")


def _format_text(raw: str | bytes) -> str:
    # A binary value that only one side shows as text is a difference of types, so it stays visible as hex.
    return raw if isinstance(raw, str) else raw.hex().upper()


def _format_integer(raw: str | bytes) -> str:
    return str(int(_decode_ascii(raw)))


def _format_decimal(raw: str | bytes) -> str:
    try:
        return format(Decimal(_decode_ascii(raw)), "f")
    except InvalidOperation as error:
        raise WireError(f"not a decimal: {raw!r}") from error


def _round_to_single(value: float) -> float:
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


# TiDB compares a FLOAT with the limits as 32-bit numbers; the one nearest to 1e15 is 999999986991104.
_HUGE, _TINY = _round_to_single(1e15), _round_to_single(1e-15)


def _is_in_exponent_form(value: float) -> bool:
    return value != 0 and not _TINY <= abs(_round_to_single(value)) < _HUGE


def _format_float(raw: str | bytes) -> str:
    value = float(_decode_ascii(raw))
    if _is_in_exponent_form(value):
        # Below the smallest normal number only few digits are significant: the shortest text of 1.4013e-45 is 1e-45.
        return format(_round_to_single(value), ".5e")
    return repr(_round_to_single(value))


def _format_double(raw: str | bytes) -> str:
    return repr(float(_decode_ascii(raw)))


def _format_bits(raw: str | bytes) -> str:
    data = raw if isinstance(raw, bytes) else raw.encode("latin-1")
    return str(int.from_bytes(data, "big"))


def _format_hex(raw: str | bytes) -> str:
    return (raw if isinstance(raw, bytes) else raw.encode()).hex().upper()


def _format_json(raw: str | bytes) -> str:
    text = raw if isinstance(raw, str) else raw.decode()
    try:
        return json.dumps(json.loads(text, parse_float=_parse_number), sort_keys=True, ensure_ascii=False)
    except ValueError:
        # The text is not JSON: it stays as it is and therefore differs.
        return f"not JSON: {text}"


def _parse_number(text: str) -> int | float:
    """TiDB prints a whole double as an integer (with an exponent from 1e21 up)."""
    number = float(text)
    return int(number) if number.is_integer() and abs(number) < 1e21 else number


_RULES: dict[str, Callable[[str | bytes], str]] = {
    **dict.fromkeys(("tinyint", "smallint", "mediumint", "int", "bigint", "year"), _format_integer),
    **dict.fromkeys(("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"), _format_hex),
    "decimal": _format_decimal,
    "float": _format_float,
    "double": _format_double,
    "bit": _format_bits,
    "json": _format_json,
}
