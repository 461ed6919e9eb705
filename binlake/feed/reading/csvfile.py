"""Reads CSV files of feeds: quoting distinguishes a text from a number and from NULL."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from binlake.config.protocols import CsvOptions
from binlake.errors import WireError
from binlake.feed.reading.events import MessageEvent

_OPS = {"I": "c", "U": "u", "D": "d"}


@dataclass(frozen=True)
class CsvLine:
    """One line: operation, table, schema, optional fields, and the values as texts; NULL is None."""

    op: str
    table: str
    db: str
    commit_ts: int | None
    is_update: bool
    values: tuple[str | None, ...]


def decode_csv_file(path: str, content: bytes, columns: Sequence[str], options: CsvOptions) -> Iterator[MessageEvent]:
    """The events of a file whose rows have `columns`. Raises WireError.

    An update with its old row has two lines and is one event.
    """
    old: MessageEvent | None = None
    for number, fields in enumerate(_read_lines(content.decode("utf-8"), options, path)):
        line = _parse_line(f"{path}:{number}", fields, options)
        if len(line.values) != len(columns):
            raise WireError(
                f"a line of CSV has {len(line.values)} values, but the table has {len(columns)} columns",
                where={"at": f"{path}:{number}"},
                hint=_HINT,
            )
        row = dict(zip(columns, line.values, strict=True))
        event = MessageEvent(f"{path}:{number}", line.commit_ts, line.db, line.table, _OPS[line.op], value=row)
        if line.is_update and line.op == "D":
            old = event
        elif line.is_update and old is not None:
            yield replace(event, op="u", before=old.value)
            old = None
        else:
            yield event


def _parse_line(place: str, fields: list[str | None], options: CsvOptions) -> CsvLine:
    left = iter(fields)
    try:
        op, table, db = (str(next(left)) for _ in range(3))
        commit_ts = int(str(next(left))) if options.commit_ts else None
        is_update = next(left) == "true" if options.old_value else False
    except (StopIteration, ValueError, RuntimeError) as error:
        raise WireError("a line of CSV lacks its first values", where={"at": place}, hint=_HINT) from error
    if op not in _OPS:
        raise WireError(f"a line of CSV begins with {op!r}, not with I, U or D", where={"at": place}, hint=_HINT)
    return CsvLine(op, table, db, commit_ts, is_update, tuple(left))


def _read_lines(text: str, options: CsvOptions, path: str) -> Iterator[list[str | None]]:
    reader = _Reader(text, options)
    while reader.at < len(text):
        try:
            yield list(reader.read_line())
        except ValueError as error:
            raise WireError(
                f"CSV cannot be read: {error}", where={"file": path, "byte": reader.at}, hint=_HINT
            ) from error


class _Reader:
    """Reads lines from a text. `at`: the start of the next line. Raises ValueError."""

    def __init__(self, text: str, options: CsvOptions) -> None:
        self._text, self._options, self.at = text, options, 0
        self._ends = (options.delimiter, options.terminator)

    def read_line(self) -> Iterator[str | None]:
        """The values of the next line; NULL is None."""
        yield self._read_value()
        while self._skip_if(self._options.delimiter):
            yield self._read_value()
        if not self._skip_if(self._options.terminator):
            raise ValueError("a line does not end where it should")

    def _read_value(self) -> str | None:
        options = self._options
        if options.quote and self._skip_if(options.quote):
            return self._read_quoted(options.quote)
        if self._text.startswith(options.null, self.at) and self._text.startswith(
            self._ends, self.at + len(options.null)
        ):
            self.at += len(options.null)
            return None
        signs = []
        while self.at < len(self._text) and not self._text.startswith(self._ends, self.at):
            is_escaped = not options.quote and self._skip_if("\\")
            sign = self._text[self.at : self.at + 1]
            signs.append(_ESCAPES.get(sign, sign) if is_escaped else sign)
            self.at += 1
        return "".join(signs)

    def _read_quoted(self, quote: str) -> str:
        parts = []
        while True:
            end = self._text.find(quote, self.at)
            if end < 0:
                raise ValueError("a quote is not closed")
            parts.append(self._text[self.at : end])
            self.at = end + 1
            if not self._skip_if(quote):
                return quote.join(parts)

    def _skip_if(self, sign: str) -> bool:
        matches = self._text.startswith(sign, self.at)
        self.at += len(sign) if matches else 0
        return matches


_ESCAPES = {"r": "\r", "n": "\n"}
_HINT = "the feed's section has delimiter, quote and columns: read with --replication and --feed"
