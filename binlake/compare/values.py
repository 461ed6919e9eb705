"""One text per value and type, whatever the server that shows it (docs/understand/equality.md).

The rules: numbers by value, text and time as shown, bytes as upper-case hex, JSON as a value. What a text cannot show
is reported as an exemption, and counted.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from decimal import Decimal, InvalidOperation

from binlake.base.dialects import Dialect
from binlake.compare.structure import base_type
from binlake.errors import WireError

Raw = str | bytes | None
"""What a text-protocol client gets: text, bytes of binary types, NULL."""

FLOAT_DIGITS = "FLOAT shown in exponent form: 6 digits compared"
ZEROFILL = "ZEROFILL: compared without padding"
JSON_VALUE = "JSON: compared as a value, not as text"
LATIN1_TEXT = "text that is not UTF-8: compared as latin1"
JSON_DEEP = "JSON nested deeper than 31 levels: text that MariaDB's own JSON functions refuse"

_MARIADB_JSON_LEVELS = 31
_TEXTS = frozenset(("char", "varchar", "tinytext", "text", "mediumtext", "longtext"))


def raw_from_capture(value: object) -> Raw:
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
    if not isinstance(raw, bytes) or base_type(column_type) not in _TEXTS:
        return raw
    try:
        raw.decode()
    except UnicodeDecodeError:
        return "".join(map(_latin1_letter, raw))
    raise WireError(f"a text recorded as bytes: {raw.hex()}", where={"type": column_type})


def _latin1_letter(byte: int) -> str:
    """MySQL's latin1: windows-1252, and a control character where that has none."""
    try:
        return bytes((byte,)).decode("cp1252")
    except UnicodeDecodeError:
        return chr(byte)


def canonical_text_of(column_type: str) -> Callable[[Raw], str | None]:
    """The function that gives the one text of a value of `column_type` (as SHOW COLUMNS names it)."""
    rule = _RULES.get(base_type(column_type), _text)

    def value(raw: Raw) -> str | None:
        return None if raw is None else rule(raw)

    return value


def list_exemptions(column_type: str, raw: Raw, dialect: Dialect = "mariadb") -> tuple[str, ...]:
    """Which exemptions apply to the recorded value `raw` on a target of `dialect`."""
    found: list[str] = []
    kind = base_type(column_type)
    if isinstance(raw, bytes) and kind in _TEXTS:
        found.append(LATIN1_TEXT)
    if "zerofill" in column_type.lower():
        found.append(ZEROFILL)
    if kind == "json":
        found.append(JSON_VALUE)
        if dialect == "mariadb" and _levels(json.loads(raw or "null")) > _MARIADB_JSON_LEVELS:
            found.append(JSON_DEEP)
    if kind == "float" and isinstance(raw, str) and _in_exponent_form(float(raw)):
        found.append(FLOAT_DIGITS)
    return tuple(found)


def _levels(value: object) -> int:
    """How deep arrays and objects are nested: 0 for a scalar."""
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inside is None else 1 + max(map(_levels, inside), default=0)


def _string(raw: str | bytes) -> str:
    return raw if isinstance(raw, str) else raw.decode("ascii")


def _text(raw: str | bytes) -> str:
    # A binary value that one side shows as text would be a difference of types: it stays visible as hex.
    return raw if isinstance(raw, str) else raw.hex().upper()


def _integer(raw: str | bytes) -> str:
    return str(int(_string(raw)))


def _decimal(raw: str | bytes) -> str:
    try:
        return format(Decimal(_string(raw)), "f")
    except InvalidOperation as error:
        raise WireError(f"not a decimal: {raw!r}") from error


def _single(value: float) -> float:
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


# TiDB compares a FLOAT with the limits as 32-bit numbers: that next to 1e15 is 999999986991104.
_HUGE, _TINY = _single(1e15), _single(1e-15)


def _in_exponent_form(value: float) -> bool:
    return value != 0 and not _TINY <= abs(_single(value)) < _HUGE


def _float(raw: str | bytes) -> str:
    value = float(_string(raw))
    if _in_exponent_form(value):
        # Below the least normal number few digits are left: the shortest text of 1.4013e-45 is 1e-45.
        return format(_single(value), ".5e")
    return repr(_single(value))


def _double(raw: str | bytes) -> str:
    return repr(float(_string(raw)))


def _bits(raw: str | bytes) -> str:
    data = raw if isinstance(raw, bytes) else raw.encode("latin-1")
    return str(int.from_bytes(data, "big"))


def _hex(raw: str | bytes) -> str:
    return (raw if isinstance(raw, bytes) else raw.encode()).hex().upper()


def _json(raw: str | bytes) -> str:
    text = raw if isinstance(raw, str) else raw.decode()
    try:
        return json.dumps(json.loads(text), sort_keys=True, ensure_ascii=False)
    except ValueError:
        # Not JSON at all: shown as it is, and so found different.
        return f"not JSON: {text}"


_RULES: dict[str, Callable[[str | bytes], str]] = {
    **dict.fromkeys(("tinyint", "smallint", "mediumint", "int", "bigint", "year"), _integer),
    **dict.fromkeys(("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"), _hex),
    "decimal": _decimal,
    "float": _float,
    "double": _double,
    "bit": _bits,
    "json": _json,
}
