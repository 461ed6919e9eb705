"""Checks of one server: does it write the log that the feeder needs, and may the feeder's user read it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Literal

import pymysql

from binlake.common.sql import parse_privileges
from binlake.common.sqllink import LOOPBACK
from binlake.errors import BinlakeError
from binlake.mysqlbinlog.model import BinlogPosition, Flavor
from binlake.pump_service.feeder.dump import find_start, read_identity
from binlake.pump_service.feeder.server import Address, Link, ask, connect, derive_flavor, read_variables
from binlake.pump_service.feeder.settings import SourceFile

Verdict = Literal["ok", "warn", "fail"]
_OLDEST = {Flavor.MYSQL: (5, 7), Flavor.MARIADB: (10, 5)}
_DAY_S = 86_400
_ENOUGH_DAYS = 2
_ON = frozenset({"ON", "1"})
_LOG_PRIVILEGES = {
    Flavor.MYSQL: ("REPLICATION SLAVE", "REPLICATION CLIENT"),
    Flavor.MARIADB: ("REPLICATION SLAVE", "BINLOG MONITOR"),
}

_READ_GRANT = re.compile(r"(GRANT|REVOKE) (?:.*\b)?(?:SELECT|ALL PRIVILEGES)\b(?! \().* ON (.+\.\*) (?:TO|FROM) ")
"""A GRANT or REVOKE of SELECT on whole databases."""

_SYNONYMS = {
    "REPLICATION CLIENT": "BINLOG MONITOR",
    "REPLICATION REPLICA": "REPLICATION SLAVE",
}
"""Other names of a privilege."""


@dataclass(frozen=True)
class ServerFacts:
    """What a server reports about itself. `is_first`: the first of the source's servers, which is read first;
    `replicas`: server ids of the connected replicas; `tls`: TLS version of the session, "" = none."""

    flavor: Flavor
    version: str
    settings: Mapping[str, str]
    grants: tuple[str, ...]
    replicas: frozenset[int]
    is_first: bool = True
    tls: str = ""

    def look_up_variable(self, name: str) -> str:
        """The upper-case value of a variable, "" if the server has none of that name."""
        return self.settings.get(name, "").upper()

    def is_on(self, name: str) -> bool:
        """Whether a switch is on."""
        return self.look_up_variable(name) in _ON


def read_facts(link: Link, *, is_first: bool) -> ServerFacts:
    """Read the facts of the server behind `link`. Raises pymysql's errors."""
    flavor, settings = derive_flavor(link), read_variables(link)
    grants = tuple(str(row[0]) for row in ask(link, "SHOW GRANTS"))
    tls = str(ask(link, "SHOW SESSION STATUS LIKE 'Ssl_version'")[0][1])
    return ServerFacts(flavor, settings.get("version", ""), settings, grants, _read_replica_ids(link), is_first, tls)


def _read_replica_ids(link: Link) -> frozenset[int]:
    for query in ("SHOW REPLICAS", "SHOW SLAVE HOSTS"):
        try:
            return frozenset(int(row[0]) for row in ask(link, query))
        except pymysql.err.Error:  # unknown to this version, or not allowed: privileges have their own check
            continue
    return frozenset()


def check_address(
    source: SourceFile, address: Address, server_id: int
) -> tuple[list[CheckFinding], ServerFacts | None]:
    """The checks of one server of a source; no facts if it cannot be queried."""
    is_first = address == source.servers[0]
    try:
        with closing(connect(source, address)) as link:
            facts = read_facts(link, is_first=is_first)
            findings = check_server(facts, server_id, with_snapshot=source.start.mode == "snapshot")
            return [*findings, _check_tls(facts, source, address), *_check_start(link, facts, source)], facts
    except BinlakeError as error:
        return [
            CheckFinding("connection", "fail", error.message, error.hint or "address of the source in feeder.toml")
        ], None
    except pymysql.err.Error as error:
        return [CheckFinding("connection", "fail", str(error.args[-1]), "privileges of the source's user")], None


def _check_tls(facts: ServerFacts, source: SourceFile, address: Address) -> CheckFinding:
    if address[0] in LOOPBACK:
        return CheckFinding("TLS", "ok", facts.tls or "none, to this machine")
    if not facts.tls:
        remedy = "the log travels in the clear: switch TLS on at the server, then ssl-ca in [source.security]"
        return CheckFinding("TLS", "warn", "none", remedy)
    is_checked = source.security.checks_certificate
    remedy = "anybody may pretend to be the source: ssl-ca in [source.security] of feeder.toml"
    return judge(
        "TLS", is_checked, f"{facts.tls}, the certificate is {'' if is_checked else 'not '}checked", remedy, "warn"
    )


def check_server(facts: ServerFacts, server_id: int, *, with_snapshot: bool) -> list[CheckFinding]:
    """All checks that need only the facts."""
    findings = [finding for check in _CHECKS for finding in check(facts)]
    return [*findings, *_check_server_id(facts, server_id), *_check_privileges(facts, with_snapshot)]


@dataclass(frozen=True, slots=True)
class CheckFinding:
    """`fail`: the feeder would stop, or lose or mix up rows; `warn`: worth knowing. `remedy`: "" if ok."""

    check: str
    verdict: Verdict
    found: str
    remedy: str = ""


def judge(check: str, is_ok: bool, found: str, remedy: str, otherwise: Verdict = "fail") -> CheckFinding:
    """The finding of a check: `otherwise` is the verdict unless `is_ok`."""
    return CheckFinding(check, "ok", found) if is_ok else CheckFinding(check, otherwise, found, remedy)


def _check_version(facts: ServerFacts) -> Iterable[CheckFinding]:
    numbers = tuple(int(number) for number in re.findall(r"\d+", facts.version)[:2])
    oldest = _OLDEST[facts.flavor]
    found = f"{facts.flavor.value} {facts.version}"
    yield judge("version", numbers >= oldest, found, f"{facts.flavor.value} {oldest[0]}.{oldest[1]} or newer", "warn")


def _check_log(facts: ServerFacts) -> Iterable[CheckFinding]:
    yield judge(
        "log_bin", facts.is_on("log_bin"), facts.look_up_variable("log_bin") or "OFF", "start the server with --log-bin"
    )
    remedy = "SET GLOBAL binlog_format = ROW, and end the sessions that were open before"
    # A future MySQL may drop the variable: then there is nothing but rows.
    form = facts.look_up_variable("binlog_format") or "ROW"
    yield judge("binlog_format", form == "ROW", form, remedy)
    image = facts.look_up_variable("binlog_row_image") or "FULL"
    remedy = "SET GLOBAL binlog_row_image = FULL, and end the sessions that were open before"
    yield judge("binlog_row_image", image == "FULL", image, remedy)


def _check_metadata(facts: ServerFacts) -> Iterable[CheckFinding]:
    level = facts.look_up_variable("binlog_row_metadata") or "NO_LOG"
    remedy = "SET GLOBAL binlog_row_metadata = FULL: definitions are then checked by name against the log"
    yield judge("binlog_row_metadata", level == "FULL", level, remedy, "warn")


def _check_gtids(facts: ServerFacts) -> Iterable[CheckFinding]:
    mode = "ON" if facts.flavor is Flavor.MARIADB else facts.look_up_variable("gtid_mode") or "OFF"
    remedy = "without GTIDs the feeder cannot switch to another server: SET GLOBAL gtid_mode = ON, step by step"
    yield judge("GTID", mode == "ON", mode, remedy, "warn" if facts.is_first else "fail")
    if facts.flavor is Flavor.MARIADB:
        strict = facts.look_up_variable("gtid_strict_mode") or "OFF"
        remedy = "SET GLOBAL gtid_strict_mode = ON: then the numbers of a domain always increase"
        yield judge("gtid_strict_mode", strict in _ON, strict, remedy, "warn")


def _check_replica_updates(facts: ServerFacts) -> Iterable[CheckFinding]:
    if not facts.is_first:
        name = "log_replica_updates" if "log_replica_updates" in facts.settings else "log_slave_updates"
        remedy = f"start this server with {name}: otherwise its log lacks what it replicates"
        yield judge(name, facts.is_on(name), facts.look_up_variable(name) or "OFF", remedy)


def _check_retention(facts: ServerFacts) -> Iterable[CheckFinding]:
    seconds = float(facts.settings.get("binlog_expire_logs_seconds") or 0)
    seconds = seconds or _DAY_S * float(facts.settings.get("expire_logs_days") or 0)
    is_ok = seconds == 0 or seconds >= _ENOUGH_DAYS * _DAY_S
    remedy = (
        f"keep the log {_ENOUGH_DAYS} days or more (binlog_expire_logs_seconds): longer than the feeder may be down"
    )
    yield judge("retention", is_ok, f"{seconds / _DAY_S:g} days" if seconds else "forever", remedy, "warn")


def _check_server_id(facts: ServerFacts, server_id: int) -> Iterable[CheckFinding]:
    own = facts.look_up_variable("server_id") or "0"
    if own == "0":
        yield CheckFinding("server_id", "fail", "0", "SET GLOBAL server_id to a unique number")
    elif int(own) == server_id:
        yield CheckFinding(
            "server_id", "fail", f"{own}, which is also the feeder's", "another `server-id` in feeder.toml"
        )
    elif server_id in facts.replicas:
        remedy = "another `server-id` in feeder.toml, unless it is this feeder, already running"
        yield CheckFinding("server_id", "warn", f"a replica with the feeder's id {server_id} is connected", remedy)
    else:
        yield CheckFinding("server_id", "ok", f"{own}, the feeder's is {server_id}")


def _check_privileges(facts: ServerFacts, with_snapshot: bool) -> Iterable[CheckFinding]:
    granted = {_SYNONYMS.get(privilege, privilege) for grant in facts.grants for privilege in parse_privileges(grant)}
    # Roles and grants on single databases are not examined: SELECT on anything counts as SELECT.
    wanted = [*_LOG_PRIVILEGES[facts.flavor], "SELECT"]
    missing = [
        privilege
        for privilege in wanted
        if not granted & {_SYNONYMS.get(privilege, privilege), "ALL PRIVILEGES", "SUPER"}
    ]
    # SUPER does not include reading tables.
    if "SELECT" not in missing and not granted & {"SELECT", "ALL PRIVILEGES"}:
        missing.append("SELECT")
    remedy = f"GRANT {', '.join(missing)} ON *.* TO the feeder's user"
    yield judge("privileges", not missing, f"missing: {', '.join(missing)}" if missing else "enough", remedy)
    if with_snapshot and facts.flavor is Flavor.MYSQL and not granted & {"RELOAD", "ALL PRIVILEGES"}:
        remedy = "GRANT RELOAD ON *.*: one short lock for the snapshot's position; without it each table is locked"
        yield CheckFinding("privileges of the snapshot", "warn", "missing: RELOAD", remedy)


def _check_databases(facts: ServerFacts) -> Iterable[CheckFinding]:
    hidden = describe_hidden(facts.grants)
    if hidden:
        remedy = "GRANT SELECT ON *.*, or list the rest in `ignore-tables`: its first row in the log stops the source"
        yield CheckFinding("databases", "warn", hidden, remedy)


def describe_hidden(grants: Iterable[str]) -> str:
    """What a user with `grants` does not see, "" = nothing: a server does not even list a database on which the user
    has no privilege."""
    reads = [found.groups() for grant in grants if (found := _READ_GRANT.match(grant))]
    seen = {scope.replace("`", "") for word, scope in reads if word == "GRANT"}
    hidden = {scope.replace("`", "") for word, scope in reads if word == "REVOKE"}
    if seen and "*.*" not in seen:
        return f"only {', '.join(sorted(seen))} can be seen"
    return f"cannot be seen: {', '.join(sorted(hidden))}" if hidden else ""


def _check_start(link: Link, facts: ServerFacts, source: SourceFile) -> Iterable[CheckFinding]:
    start = source.start
    if start.mode not in ("gtid", "position") or not facts.is_on("log_bin"):
        return
    position = BinlogPosition("", 4, start.gtid) if start.mode == "gtid" else BinlogPosition(start.file, start.offset)
    shown = start.gtid or f"{start.file}:{start.offset}"
    try:
        find_start(link, facts.flavor, position, read_identity(link, facts.flavor), last_uuid="")
    except BinlakeError as error:
        yield CheckFinding("start", "fail", f"{shown}: {error.message}", error.hint)
    else:
        yield CheckFinding("start", "ok", shown)


_CHECKS: tuple[Callable[[ServerFacts], Iterable[CheckFinding]], ...] = (
    _check_version,
    _check_log,
    _check_metadata,
    _check_gtids,
    _check_replica_updates,
    _check_retention,
    _check_databases,
)
