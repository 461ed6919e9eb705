"""The values and definitions of every server in one canonical form (docs/understand/equality.md).

They are independent of the pipeline: they come from plain SQL and use none of the pipeline's decoders. Values become
one text per value and type: numbers by value, text and time as shown, bytes as upper-case hex, JSON as a value; what a
text cannot show is reported and counted as exemptions. Of a definition only what equality compares is read: no
defaults, comments, partitions, checks and foreign keys.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from itertools import pairwise

from binlake.common.sql import Dialect
from binlake.errors import WireError

EXPRESSION = "(expression)"
# Only in the elements of ENUM and SET, TiDB writes a backslash unescaped, so there it escapes no quote.
_TOKEN = re.compile(
    r"/\*.*?\*/|`(?:[^`]|``)*`|\b(?:enum|set)\('(?:[^']|'')*'(?:,'(?:[^']|'')*')*\)|'(?:[^'\\]|''|\\.)*'"
    r"|\"(?:[^\"\\]|\"\"|\\.)*\"|\w+|[^\s\w]",
    re.S | re.IGNORECASE,
)
_ELEMENT = re.compile(r"'(?:[^']|'')*'")
_WITH_COLLATION = ("char", "varchar", "tinytext", "text", "mediumtext", "longtext", "enum", "set")
Raw = str | bytes | None
"""A value as a text-protocol client receives it: text, bytes for binary types, or NULL."""
FLOAT_DIGITS = "FLOAT shown in exponent form: 6 digits compared"
ZEROFILL = "ZEROFILL: compared without padding"
JSON_VALUE = "JSON: compared as a value, not as text"
LATIN1_TEXT = "text that is not UTF-8: compared as latin1"
JSON_DEEP = "JSON nested deeper than 31 levels: text that MariaDB's own JSON functions refuse"
_MARIADB_JSON_LEVELS = 31
_TEXTS = frozenset(("char", "varchar", "tinytext", "text", "mediumtext", "longtext"))


@dataclass(frozen=True)
class ColumnStructure:
    """A column: `type` as in `normalize_type`; `collation` is empty for types without one.

    `lost_default`: its default contains U+FFFD, which TiDB stores for bytes that are not UTF-8.
    """

    name: str
    type: str
    nullable: bool
    collation: str
    generated: bool
    lost_default: bool = False


@dataclass(frozen=True)
class KeyStructure:
    """A key: `columns` with prefix lengths (0 = whole); an expression is `EXPRESSION`. `name` is lower case."""

    name: str
    unique: bool
    columns: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        parts = ", ".join(f"{name}({length})" if length else name for name, length in self.columns)
        return f"{'unique ' if self.unique else ''}key {self.name} ({parts})"


@dataclass(frozen=True)
class TableStructure:
    """A table's columns in order and its keys."""

    columns: tuple[ColumnStructure, ...]
    keys: frozenset[KeyStructure]


def normalize_type(text: str, *, backslash_escapes: bool = False) -> str:
    """A type in canonical spelling: lower case, single blanks, integers and YEAR without display width, ENUM and SET as
    JSON.

    `backslash_escapes`: quoted elements escape backslashes, as in MySQL and MariaDB; TiDB escapes only line ends.
    """
    if parse_base_type(text) in ("enum", "set"):
        elements = [_unquote_element(part, backslash_escapes) for part in _ELEMENT.findall(text)]
        return f"{parse_base_type(text)}{json.dumps(elements, ensure_ascii=False)}"
    spelled = re.sub(r"\s+", " ", text.lower()).strip()
    return re.sub(r"^((?:tiny|small|medium|big)?int|year)\s*\(\d+\)", r"\1", spelled)


def _unquote_element(quoted: str, backslash_escapes: bool) -> str:
    known = {"n": "\n", "r": "\r", "0": "\0"} | (
        {"\\": "\\", "t": "\t", "b": "\b", "Z": "\x1a"} if backslash_escapes else {}
    )
    return re.sub(r"''|\\(.)", lambda m: "'" if m[1] is None else known.get(m[1], m[0]), quoted[1:-1], flags=re.S)


def normalize_collation(name: str) -> str:
    """The name in lower case, with `utf8` under its newer name `utf8mb3`."""
    return re.sub(r"^utf8_", "utf8mb3_", name.lower())


def parse_base_type(text: str) -> str:
    """The first word of a type: `varchar(20)` is `varchar`."""
    return re.split(r"[\s(]", text.lower(), maxsplit=1)[0]


def parse_create(create: str, types: Sequence[str]) -> TableStructure:
    """Parse the text of SHOW CREATE TABLE; `types`: those of SHOW COLUMNS, in the same order. Raises WireError."""
    body, options = _split(create)
    default = _find_option(options, "COLLATE")
    definitions = list(_split_definitions(body))
    column_definitions = [definition for definition in definitions if definition[0].startswith("`")]
    if len(column_definitions) != len(types):
        raise WireError("SHOW CREATE TABLE and SHOW COLUMNS differ", where={"create": create[:80]})
    columns = tuple(
        _parse_column(tokens, kind, default) for tokens, kind in zip(column_definitions, types, strict=True)
    )
    return TableStructure(columns, frozenset(key for tokens in definitions if (key := _parse_key(tokens))))


def _tokenize(text: str) -> list[str]:
    return [token for token in _TOKEN.findall(text) if not token.startswith("/*")]


def _split(create: str) -> tuple[list[str], list[str]]:
    tokens = _tokenize(create)
    depth = 0
    opened = tokens.index("(") if "(" in tokens else -1
    for at in range(max(opened, 0), len(tokens)):
        depth += (tokens[at] == "(") - (tokens[at] == ")")
        if depth == 0 and opened >= 0:
            return tokens[opened + 1 : at], tokens[at + 1 :]
    raise WireError("no table definition", where={"create": create[:80]})


def _split_definitions(body: Sequence[str]) -> Iterator[list[str]]:
    current: list[str] = []
    depth = 0
    for token in body:
        depth += (token == "(") - (token == ")")
        if token == "," and depth == 0:
            yield current
            current = []
        else:
            current.append(token)
    if current:
        yield current


def _find_option(tokens: Sequence[str], name: str) -> str:
    for at, token in enumerate(tokens):
        if token.upper() == name and at + 1 < len(tokens):
            value = tokens[at + 2] if tokens[at + 1] == "=" else tokens[at + 1]
            return value.strip("'`").lower()
    return ""


def _parse_column(tokens: Sequence[str], kind: str, default: str) -> ColumnStructure:
    top = list(_select_top_level(tokens))
    words = [token.upper() for token in top]
    collation = (
        normalize_collation(_find_option(top, "COLLATE") or default) if parse_base_type(kind) in _WITH_COLLATION else ""
    )
    not_null = ("NOT", "NULL") in pairwise(words)
    lost = any(word == "DEFAULT" and "\ufffd" in value for word, value in pairwise(words))
    return ColumnStructure(
        unquote(tokens[0]), normalize_type(kind), not not_null, collation, "GENERATED" in words, lost
    )


def _select_top_level(tokens: Sequence[str]) -> Iterator[str]:
    depth = 0
    for token in tokens:
        depth -= token == ")"
        if depth == 0 and token != ")":
            yield token
        depth += token == "("


def _parse_key(tokens: Sequence[str]) -> KeyStructure | None:
    words = [token.upper() for token in tokens[:3]]
    if words[0] not in ("PRIMARY", "UNIQUE", "KEY", "INDEX", "FULLTEXT", "SPATIAL"):
        return None
    primary, unique = words[0] == "PRIMARY", words[0] in ("PRIMARY", "UNIQUE")
    opened = tokens.index("(")
    name = "primary" if primary else unquote(tokens[opened - 1]).lower()
    return KeyStructure(name, unique, tuple(_parse_key_columns(_select_inside(tokens, opened))))


def _select_inside(tokens: Sequence[str], opened: int) -> list[str]:
    depth = 0
    for at in range(opened, len(tokens)):
        depth += (tokens[at] == "(") - (tokens[at] == ")")
        if depth == 0:
            return list(tokens[opened + 1 : at])
    raise WireError("a key without closing parenthesis", where={"key": " ".join(tokens)[:80]})


def _parse_key_columns(tokens: Sequence[str]) -> Iterator[tuple[str, int]]:
    for part in _split_definitions(tokens):
        if part[0] == "(":
            yield EXPRESSION, 0
        else:
            yield unquote(part[0]), int(part[2]) if len(part) > 2 and part[1] == "(" else 0


def unquote(token: str) -> str:
    """The name without its back quotes, or the token itself if it has none."""
    return token[1:-1].replace("``", "`") if token.startswith("`") else token


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
