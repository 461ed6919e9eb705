"""Make the target convert stored values at MODIFY COLUMN as TiDB does: natively, by an expression, or not at all
(R-29).

The native conversions of MariaDB 10.11 were measured for each pair of types against `codec.casts`, which the captures
verify: in a lenient session that rounds fractional seconds, in the time zone of the source's session. Pairs of types
that are not in the table are refused. MySQL 8 was measured in the same way, in a lenient session; its table has the
pairs that gave equal results for every value, recorded or generated.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache

from binlake.common.sql import Dialect
from binlake.dialect.routed import Unmappable
from binlake.rows.schema import ColumnInfo
from binlake.rows.schema import mysqltypes as t
from binlake.rows.schema.job import SourceSession

_GROUPS = {
    **dict.fromkeys(t.INTEGERS, "integer"),
    **dict.fromkeys(t.DATES, "date"),
    t.NEWDECIMAL: "decimal",
    t.FLOAT: "real",
    t.DOUBLE: "real",
    t.BIT: "bit",
    t.YEAR: "year",
    t.TIMESTAMP: "timestamp",
    t.DATETIME: "datetime",
    t.DURATION: "time",
    t.ENUM: "enum",
    t.SET: "set",
    t.JSON: "json",
}
_MOMENTS = "timestamp datetime date"
_NUMBERS = "integer decimal real"
_NATIVE = {
    "integer": f"{_NUMBERS} bit year text binary {_MOMENTS} time enum set",
    "decimal": f"{_NUMBERS} bit year text binary {_MOMENTS} enum set",
    "real": f"{_NUMBERS} bit enum set",
    "bit": "integer decimal bit",
    "year": f"{_NUMBERS} year",
    "text": f"decimal real year text binary {_MOMENTS} enum set",
    "binary": "decimal real text binary",
    "timestamp": f"{_NUMBERS} year text binary {_MOMENTS} time",
    "datetime": f"{_NUMBERS} year text binary {_MOMENTS} time",
    "date": f"{_NUMBERS} year text binary {_MOMENTS} time",
    "time": f"{_NUMBERS} text binary {_MOMENTS} time",
    "enum": f"{_NUMBERS} text binary enum set",
    "set": f"{_NUMBERS} text binary enum set",
    "json": "text binary",
}
_NATIVE_MYSQL = {
    "integer": f"{_NUMBERS} bit year text binary time enum set",
    "decimal": f"{_NUMBERS} bit text binary",
    "real": "decimal real",
    "bit": "integer decimal bit",
    "year": f"{_NUMBERS} year",
    "text": "decimal real text binary timestamp datetime enum set json",
    "binary": "decimal real text binary",
    "timestamp": f"{_NUMBERS} text binary {_MOMENTS} time",
    "datetime": f"{_NUMBERS} text binary {_MOMENTS} time",
    "date": f"{_NUMBERS} text binary {_MOMENTS} time",
    "time": f"{_NUMBERS} text binary {_MOMENTS} time",
    "enum": f"{_NUMBERS} text binary enum set",
    "set": f"{_NUMBERS} text binary enum set",
}
_FIRST, _LAST = datetime(1970, 1, 1, tzinfo=UTC), datetime(2038, 1, 20, tzinfo=UTC)
_SIGNIFICANT = (6, 7, 8, 9)
"""Numbers of digits that the shortest text of a FLOAT can have."""


def cast_expression(name: str, source: ColumnInfo, target: ColumnInfo, session: SourceSession, dialect: Dialect) -> str:
    """An SQL expression that converts the quoted column `name` as TiDB does; empty if the target's ALTER does the same.

    Raises Unmappable if neither is known; then `codec.casts` may still know the values (`families`).
    """
    former, now = find_type_group(source), find_type_group(target)
    if former == "text" and now == "binary" and session.guessed:
        raise Unmappable(
            f"bytes of {target.name} from {source.type_text}: some may not be UTF-8 at the source, and Binlake read"
            " them as latin1 (source.invalid-text)"
        )
    if dialect == "tidb":
        return ""
    if {former, now} == {"text", "binary"} and "latin1" in (source.charset, target.charset):
        # A target would convert to or from latin1 bytes; TiDB stores UTF-8 bytes, or any bytes that it got (x'f6').
        raise Unmappable(f"bytes of {target.name} from {source.type_text} to {target.type_text} with latin1")
    expression = _build_expression(name, source, target, session)
    if dialect == "mysql":
        expression = _build_mysql_expression(name, source, target, session) or expression
    if expression:
        return expression
    native = (_NATIVE if dialect == "mariadb" else _NATIVE_MYSQL).get(former, "").split()
    unsure = target.decimal >= 0 and now == "real" and former == "real" and source.decimal != target.decimal
    unsure = unsure or (former == "real" and target.tp == t.LONGLONG and target.unsigned)
    if unsure or now not in native:
        raise _build_unknown_conversion_error(source, target)
    return ""


def _build_unknown_conversion_error(source: ColumnInfo, target: ColumnInfo) -> Unmappable:
    return Unmappable(f"values of {target.name} from {source.type_text} to {target.type_text}, which TiDB converts")


def _build_mysql_expression(name: str, source: ColumnInfo, target: ColumnInfo, session: SourceSession) -> str:
    """Expressions that only MySQL needs: it rounds a datetime that becomes a date, and ignores the fraction of a TIME.

    Raises Unmappable if the result depends on such a fraction.
    """
    former, now = find_type_group(source), find_type_group(target)
    fewer = source.fsp if now in ("integer", "date") else source.fsp - target.fsp if now == "time" else 0
    if (former == "time" and fewer > 0) or (former == "text" and now == "time"):
        raise _build_unknown_conversion_error(source, target)
    if former in ("datetime", "timestamp") and now == "date" and source.fsp:
        tz = session.tz
        # Without a time zone the caller has already raised Unmappable.
        return f"DATE({_convert_to_local(name, tz) if former == 'timestamp' and tz is not None else name})"
    return ""


def find_type_group(column: ColumnInfo) -> str:
    """The name of the group of types that convert in the same way; empty for a type without a group."""
    if column.tp in t.STRINGS:
        return "binary" if column.is_binary else "text"
    return _GROUPS.get(column.tp, "")


def needs_zone(source: ColumnInfo, target: ColumnInfo) -> bool:
    """True when the result depends on the session's time zone."""
    return source.tp != target.tp and t.TIMESTAMP in (source.tp, target.tp)


def needs_day(source: ColumnInfo, target: ColumnInfo) -> bool:
    """True if the result depends on the day on which the source converted: a TIME becomes a datetime of that day."""
    return source.tp == t.DURATION and (target.tp in t.MOMENTS or target.tp in t.DATES)


def find_fixed_offset(zone: tzinfo) -> str:
    """The offset (`+08:00`) of a zone with one offset for the whole range of TIMESTAMP; empty for another zone."""
    changes = _list_offset_changes(zone)
    return _format_offset(changes[0][1]) if len(changes) == 1 else ""


def _build_expression(name: str, source: ColumnInfo, target: ColumnInfo, session: SourceSession) -> str:
    former, now = find_type_group(source), find_type_group(target)
    local, named = name, False
    if needs_zone(source, target):
        tz = session.tz
        if tz is None:
            raise Unmappable(
                f"values of {target.name} from {source.type_text} to {target.type_text}: the time zone of the source's"
                " session is not known (set source.time-zone)"
            )
        named = not find_fixed_offset(tz)
        rounds = now == "integer" and source.fsp > 0
        local = _convert_to_local(name, tz) if source.tp == t.TIMESTAMP and (named or rounds) else name
        if named and target.tp == t.TIMESTAMP:
            if former not in ("datetime", "date"):
                raise Unmappable(f"values of {target.name} from {source.type_text} to a TIMESTAMP of zone {tz}")
            return _convert_to_utc(f"CAST({name} AS DATETIME({target.fsp}))", tz)
    if former in ("timestamp", "datetime") and now == "integer" and source.fsp:
        return f"CAST({local} AS DATETIME(0)) + 0"
    if named:
        return _from_local(local, now)
    return _build_zoneless_expression(name, source, former, now, target)


def _build_zoneless_expression(name: str, source: ColumnInfo, former: str, now: str, target: ColumnInfo) -> str:
    """The expression for a conversion that does not depend on a time zone; empty if none is needed."""
    if former in ("text", "binary") and now == "integer":
        return f"ROUND(CAST({name} AS DECIMAL(65,30)))"
    padded = source.flag & t.FLAG_ZEROFILL
    if (former in ("year", "bit") or (former in ("integer", "decimal") and padded)) and now in ("text", "binary"):
        return f"CAST({name} + 0 AS CHAR)"
    if former == "real" and now in ("text", "binary"):
        return _format_double(name if source.tp == t.DOUBLE else _shorten_float(name))
    if former == "text" and now == "time":
        return _round_clock(f"CAST({name} AS TIME(6))", target.fsp)
    if former == "time" and now == "time" and source.fsp > target.fsp:
        return _round_clock(name, target.fsp)
    if former == "time" and now == "integer" and source.fsp:
        return f"CAST({_round_clock(name, 0)} AS TIME(0)) + 0"
    return ""


def _round_clock(clock: str, fsp: int) -> str:
    """Round a TIME with one half up, so that -00:00:00.5 becomes 00:00:00; a server rounds away from zero."""
    scale = 10**fsp
    return f"SEC_TO_TIME(FLOOR(TIME_TO_SEC({clock}) * {scale} + 0.5) / {scale})"


def _from_local(local: str, now: str) -> str:
    if now in ("text", "binary"):
        return f"CAST({local} AS CHAR)"
    if now in ("integer", "decimal", "real"):
        return f"{local} + 0"
    return f"TIME({local})" if now == "time" else local


def _format_double(number: str) -> str:
    """The text of a DOUBLE without an exponent, as TiDB writes it for every size; the digits are the same."""
    shown = f"CAST(ABS({number}) AS CHAR)"
    digits = f"REPLACE(SUBSTRING_INDEX({shown}, 'e', 1), '.', '')"
    power = f"CAST(SUBSTRING_INDEX({shown}, 'e', -1) AS SIGNED)"
    large = (
        f"IF(CHAR_LENGTH({digits}) <= {power} + 1, RPAD({digits}, {power} + 1, '0'),"
        f" CONCAT(LEFT({digits}, {power} + 1), '.', SUBSTRING({digits}, {power} + 2)))"
    )
    small = f"CONCAT('0.', REPEAT('0', -{power} - 1), {digits})"
    return (
        f"IF(LOCATE('e', {shown}) = 0, CAST({number} AS CHAR),"
        f" CONCAT(IF({number} < 0, '-', ''), IF({power} < 0, {small}, {large})))"
    )


def _shorten_float(name: str) -> str:
    """The shortest number that reads back as the FLOAT `name`; a server shows only 6 of its digits."""
    power = f"FLOOR(LOG10(ABS({name} * 1e0)))"
    tries = [f"CONCAT(ROUND({name} * 1e0 / POW(10, {power}), {digits - 1}), 'e', {power})" for digits in _SIGNIFICANT]
    cases = " ".join(f"WHEN CAST({one} AS FLOAT) = {name} THEN CAST({one} AS DOUBLE)" for one in tries)
    return f"(CASE WHEN {name} = 0 THEN 0e0 {cases} END)"


def _convert_to_local(name: str, zone: tzinfo) -> str:
    """Convert a TIMESTAMP to local time in `zone`, in a session at +00:00."""
    changes = _list_offset_changes(zone)
    parts = [(at, offset) for (_, offset), (at, _) in zip(changes, [*changes[1:], (_LAST, 0)], strict=True)]
    return f"IF({name} = 0, {name}, {name} + INTERVAL {_choose_by_time(name, parts, 1)} SECOND)"


def _convert_to_utc(clock: str, zone: tzinfo) -> str:
    """Convert local time in `zone` to +00:00; if the hour occurs twice, to the first one, as TiDB does."""
    changes = _list_offset_changes(zone)
    after = [*changes[1:], (_LAST, changes[-1][1])]
    parts = [
        (at + timedelta(seconds=max(offset, then)), offset)
        for (_, offset), (at, then) in zip(changes, after, strict=True)
    ]
    return f"IF({clock} = 0, {clock}, {clock} + INTERVAL {_choose_by_time(clock, parts, -1)} SECOND)"


def _choose_by_time(name: str, parts: list[tuple[datetime, int]], sign: int) -> str:
    *first, (_, last) = parts
    if not first:
        return str(sign * last)
    cases = " ".join(f"WHEN {name} < '{at:%Y-%m-%d %H:%M:%S}' THEN {sign * offset}" for at, offset in first)
    return f"(CASE {cases} ELSE {sign * last} END)"


@lru_cache(maxsize=64)
def _list_offset_changes(zone: tzinfo) -> tuple[tuple[datetime, int], ...]:
    """(start, seconds east of UTC) of each offset that `zone` has within the range of TIMESTAMP."""
    changes = [(_FIRST, _find_offset(zone, _FIRST))]
    at = _FIRST
    while at < _LAST:
        following = at + timedelta(days=7)
        while _find_offset(zone, following) != changes[-1][1]:
            start = _find_change(zone, at, following, changes[-1][1])
            changes.append((start, _find_offset(zone, start)))
            at = start
        at = following
    return tuple(changes)


def _find_change(zone: tzinfo, low: datetime, high: datetime, offset: int) -> datetime:
    while high - low > timedelta(seconds=1):
        middle = low + timedelta(seconds=(high - low) // timedelta(seconds=2))
        low, high = (middle, high) if _find_offset(zone, middle) == offset else (low, middle)
    return high


def _find_offset(zone: tzinfo, at: datetime) -> int:
    offset = at.astimezone(zone).utcoffset() or timedelta()
    return offset // timedelta(seconds=1)


def _format_offset(seconds: int) -> str:
    minutes = abs(seconds) // 60
    return f"{'-' if seconds < 0 else '+'}{minutes // 60:02d}:{minutes % 60:02d}"
