"""Checks of the target: reachable, privileges, mode, and its checkpoint row against what Binlake wrote there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

from binlake.base import sqlfiles
from binlake.base.grants import parse_privileges
from binlake.base.sqllink import LOOPBACK
from binlake.config.model import TargetSection
from binlake.health.doctor.clocks import check_skew, measure_skew_s
from binlake.health.doctor.model import DoctorLine, Patient, judge
from binlake.target.apply.position import read_position
from binlake.target.claim.checkpointrow import CheckpointTable
from binlake.target.session.session import TargetSession
from binlake.target.session.tables import has_tables, require_transactions

_NEEDED = ("SELECT", "INSERT", "UPDATE", "DELETE", "CREATE", "ALTER", "DROP", "INDEX")
_NONE = DoctorLine("target", "not applicable", "this replication has no SQL target")


def check_target(patient: Patient) -> Iterator[DoctorLine]:
    """Version, privileges, mode, and the engine of Binlake's own tables."""
    target = patient.unlocked.target
    if target is None:
        yield _NONE
        return
    with closing(TargetSession(target)) as session:
        yield DoctorLine("server", "ok", f"{session.place}: {session.fetch_value('SELECT VERSION()')}")
        yield _check_tls(target, session)
        yield _check_privileges(target, session.fetch_column("SHOW GRANTS"))
        yield DoctorLine(
            "mode", "ok", f"{target.mode}, safe-mode {target.safe_mode}, {target.worker_count} connections"
        )
        if has_tables(session, target.checkpoint_schema):
            require_transactions(session, target.checkpoint_schema, sqlfiles.TABLES)


def _check_tls(target: TargetSection, session: TargetSession) -> DoctorLine:
    """Without TLS, who is between this machine and the target reads rows and may take the session over."""
    version = str(dict(session.fetch_rows("SHOW SESSION STATUS LIKE 'Ssl_version'")).get("Ssl_version", ""))
    if target.host in LOOPBACK:
        return DoctorLine("TLS", "ok", version or "none, to this machine")
    if not version:
        remedy = "rows travel in the clear: switch TLS on at the server, then ssl-ca in [target.security]"
        return DoctorLine("TLS", "warning", "none", remedy)
    remedy = 'anybody may pretend to be the target: ssl-ca in [target.security], or ssl-mode = "verify-identity"'
    found = f"{version}, the server's certificate is {'' if target.security.checks_certificate else 'not '}checked"
    return judge("TLS", target.security.checks_certificate, found, remedy, "warning")


def _check_privileges(target: TargetSection, grants: list[str]) -> DoctorLine:
    granted = {privilege for grant in grants for privilege in parse_privileges(grant)}
    missing = [] if "ALL PRIVILEGES" in granted else [one for one in _NEEDED if one not in granted]
    found = f"missing for {target.user}: {', '.join(missing)}" if missing else "enough"
    # A role's privileges are not listed, and a grant on one database counts for all.
    return judge("privileges", not missing, found, f"GRANT {', '.join(missing)} ON *.* TO {target.user}")


def check_checkpoint(patient: Patient) -> Iterator[DoctorLine]:
    """The checkpoint row, if it is as Binlake wrote it; an open window; tables set aside."""
    replication = patient.unlocked
    target = replication.target
    if target is None:
        yield _NONE
        return
    cluster = replication.source.expected_cluster
    # Raises CheckpointMoved, and CheckpointConflict if another replication holds a window open.
    position = read_position(target, replication.name, cluster)
    with closing(TargetSession(target)) as session:
        stored = CheckpointTable(target.checkpoint_schema, cluster).read_stored(session)
    if stored.checkpoint is None:
        yield DoctorLine("checkpoint", "ok", "none yet: the first window writes it")
        return
    row = f"commitTS {stored.checkpoint.commit_ts}"
    show = f"binlake checkpoint show --replication {patient.file}"
    recorded = "" if position.is_recorded else ", written by another program"
    yield judge("checkpoint", position.is_recorded, f"{row}{recorded}", show, "warning")
    if position.opened is not None:
        text = f"{position.opened.open_lo}-{position.opened.open_hi} has begun and not ended"
        yield DoctorLine(
            "open window", "warning", text, f"if no run works on it: binlake window run --replication {patient.file}"
        )
    if position.aside:
        names = ", ".join(sorted(f"{db}.{table}" for db, table in position.aside))
        yield DoctorLine("set aside", "warning", names, f"binlake table list --replication {patient.file}")


def check_target_clock(patient: Patient) -> Iterator[DoctorLine]:
    """The target's clock."""
    target = patient.unlocked.target
    if target is None:
        yield _NONE
        return
    with closing(TargetSession(target)) as session:
        skew_s = measure_skew_s(lambda: float(session.fetch_value("SELECT UNIX_TIMESTAMP(NOW(6))")))
    yield check_skew("clock", skew_s, "the target")
