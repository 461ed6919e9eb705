"""Maps the target's error numbers to Binlake's errors: only this mapping decides about retries (S0-72, R-38, R-61)."""

from __future__ import annotations

from pymysql import err
from pymysql.constants import CR

from binlake.base.redaction import SEE_VALUES, are_row_values_shown, is_about_rows, redact_server_text, redact_sql
from binlake.base.sqllink import is_tls_refusal
from binlake.errors import BinlakeError, TargetBusy, TargetRefused, TargetUnavailable

_ACCESS = frozenset({1044, 1045, 1130, 1698, 1820, 1862})
_TLS = CR.CR_SSL_CONNECTION_ERROR
_PRIVILEGE = frozenset({1142, 1143, 1227, 1370, 1419})
# 3101: another member of a replication group wrote the same rows first; the transaction is rolled back.
_BUSY = frozenset({1205, 1213, 1020, 3101})
# 3032: MySQL's offline mode.
_UNREACHABLE = frozenset({2002, 2003, 2005, 1040, 1053, 1203, 1226, 3032})
_LOST = frozenset({0, 1077, 1079, 1152, 1158, 1159, 1160, 1161, 1927, 1129, 2006, 2013, 2014, 2055, 4031})

MISSING = frozenset({1049, 1146})
"""Unknown database, unknown table."""
# Errors that affect every table: read-only, disk or memory full, failing file or engine, packet, time or lock limit.
_SERVER = frozenset(
    {3, 28, 1021, 1026, 1030, 1036, 1037, 1038, 1041, 1114, 1153, 1180, 1206, 1227, 1290, 1317, 1370, 1419, 1792, 1836,
     1969, 3024}
)  # fmt: skip

_SHOWN = 300


def translate_error(error: err.MySQLError, place: str, statement: str = "") -> BinlakeError:
    """The error to raise for `error` of the target at `place` (host:port), with a shortened `statement`."""
    code, text = _split_error(error)
    where: dict[str, object] = {"target": place, "code": code}
    if statement:
        where["statement"] = redact_sql(statement)[:_SHOWN]
        text = redact_server_text(text, statement)
    if code in _ACCESS:
        hint = "check target.user and target.password, and that the user may log in from this host"
        return TargetRefused(f"the target refuses the login: {text}", where={"target": place, "code": code}, hint=hint)
    if is_tls_refusal(error):
        hint = "check [target.security]: ssl-ca is the CA that signed the server's certificate, host a name in it"
        where = {"target": place, "code": _TLS}
        return TargetRefused(f"no TLS with the target: {text}", where=where, hint=hint)
    if code in _PRIVILEGE:
        return TargetRefused(
            f"the target's user lacks a privilege: {text}", where=where, hint="grant it; see the runbook"
        )
    if code in _BUSY:
        return TargetBusy(f"the target rolled back: {text}", where=where)
    if code in _UNREACHABLE:
        hint = "is the server up, and target.host and target.port right?"
        return TargetUnavailable(f"the target cannot be reached: {text}", where=where, hint=hint)
    if code in _LOST or isinstance(error, err.InterfaceError):
        return TargetUnavailable(f"the connection to the target broke: {text}", where=where)
    hint = "fix the target or the row at its source, then run the window again: the checkpoint has not moved"
    if is_about_rows(statement) and not are_row_values_shown():
        hint += f"; {SEE_VALUES}"
    return TargetRefused(f"the target refuses a statement: {text}", where=where, hint=hint)


def get_error_code(error: BinlakeError) -> int:
    """The server's error number in an error of `translate_error`; 0 if it has none."""
    return int(error.where.get("code", 0))


def is_server_wide(error: BinlakeError) -> bool:
    """True when the server would refuse any other table as well."""
    return get_error_code(error) in _SERVER | _ACCESS | {_TLS}


def _split_error(error: err.MySQLError) -> tuple[int, str]:
    code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
    text = str(error.args[1]) if len(error.args) > 1 else "no answer"
    return code, text or "no answer"
