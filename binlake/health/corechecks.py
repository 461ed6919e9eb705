"""The checks of the core: configuration, PD, pumps, the source, clocks, disks; the lake (its folder or object store can
be written, and no table has lost a commit); the target (reachable, privileges, mode, and its checkpoint row against
what Binlake wrote there).
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

from binlake import tso
from binlake.cluster.control.commands import read_pump_problems
from binlake.cluster.control.config import read_table_names
from binlake.cluster.control.nodes import is_ahead, is_stale
from binlake.cluster.node import describe_hold, name_consumer
from binlake.cluster.placement import NodeStatus
from binlake.cluster.placement.pd import open_placement
from binlake.common import sql
from binlake.common.sql import parse_privileges
from binlake.common.sqllink import LOOPBACK
from binlake.config import Replication
from binlake.config.load import check_replication
from binlake.config.matching import match_rules, select_own_tables
from binlake.config.problems import list_plain_secrets
from binlake.config.servers import TargetSection
from binlake.config.sinkuri import list_storage_warnings
from binlake.health.checks import Check, DoctorLine, Patient, Verdict, check_disk, check_skew, judge, measure_skew_s
from binlake.health.problem import DIAGNOSE, Problem, fill_in, find_source_problems
from binlake.health.surroundings import build_nodes_view, hear_sources
from binlake.lake.continuity import require_all_windows
from binlake.lake.paths import LakePaths
from binlake.lake.storecheck import try_store
from binlake.lake.windowlog import WindowLog
from binlake.pipeline import list_stages_with_versions
from binlake.rules import Rules
from binlake.target.apply.position import read_position
from binlake.target.claim.checkpoint import CheckpointTable
from binlake.target.session.session import TargetSession
from binlake.target.session.tables import has_tables, require_transactions

_NEEDED = ("SELECT", "INSERT", "UPDATE", "DELETE", "CREATE", "ALTER", "DROP", "INDEX")
_NONE = DoctorLine("target", "not applicable", "this replication has no SQL target")
_HEARTBEAT_S = 2.0
_GRAVE = frozenset({"failing", "unreachable"})


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
            require_transactions(session, target.checkpoint_schema, sql.TABLES)


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


def check_lake_folder(replication: Replication) -> Iterator[DoctorLine]:
    """Whether files can be created there (the first window creates the folder), or the store does what a lake needs."""
    paths = LakePaths.of(replication)
    if paths.local is None:
        try_store(paths)
        yield DoctorLine("folder", "ok", f"{paths.root}: put, conditional put, list and delete were tried")
        return
    existing = next(path for path in (paths.local, *paths.local.parents) if path.exists())
    remedy = f"chown or chmod {existing} for the user of the tasks, or another lake.path"
    try:
        if existing == paths.local:
            tempfile.TemporaryFile(dir=existing, prefix=".doctor-").close()
        elif not os.access(existing, os.W_OK | os.X_OK):
            raise PermissionError
    except OSError as error:
        yield DoctorLine(
            "folder", "failure", f"{existing} cannot be written: {error.strerror or 'no permission'}", remedy
        )
        return
    yield DoctorLine(
        "folder", "ok", f"{paths.root}" + ("" if existing == paths.local else ": created by the first window")
    )


def check_commits(replication: Replication) -> Iterator[DoctorLine]:
    """Whether the landed windows tile, and the tables have the commits of the newest windows."""
    paths = LakePaths.of(replication)
    windows = WindowLog(paths)
    if not windows.exists() or (landed := windows.find_landed_range()) is None:
        yield DoctorLine("commits", "not applicable", "nothing has landed yet")
        return
    count = len(windows.list_landed())
    require_all_windows(paths, windows, list_stages_with_versions())
    until = tso.to_datetime(landed[1]).isoformat(sep=" ", timespec="seconds")
    yield DoctorLine("commits", "ok", f"{count:,} windows without a gap, up to {until}")


def list_checks(patient: Patient) -> list[Check]:
    """The checks that need neither the pump's nor Spark's packages."""
    local = LakePaths.of(patient.replication).local
    checks = [
        Check("config", "file", partial(_check_file, patient)),
        Check("config", "passwords", partial(_check_passwords, patient)),
        Check("PD", "cluster", partial(_check_pd, patient)),
        Check("PD", "clock", partial(_check_pd_clock, patient)),
        Check("pumps", "pumps", partial(_check_pumps, patient)),
        Check("pumps", "consumer", partial(_check_consumer, patient)),
        Check("source", "heard", partial(_check_source, patient)),
        Check("source", "rules", partial(_check_rules, patient)),
        Check("lake", "folder", partial(check_lake_folder, patient.replication)),
        Check("lake", "commits", partial(check_commits, patient.replication)),
        Check("target", "server", partial(check_target, patient)),
        Check("target", "checkpoint", partial(check_checkpoint, patient)),
        Check("target", "clock", partial(check_target_clock, patient)),
    ]
    if local is not None:
        checks.append(Check("disks", "lake", lambda: [check_disk("lake", local, "lake.path")]))
    log_dir = patient.replication.relay.log_dir
    if log_dir and "://" not in log_dir:
        checks.append(Check("disks", "relay", lambda: [check_disk("relay", Path(log_dir), "relay.log-dir")]))
    return checks


def _check_file(patient: Patient) -> Iterator[DoctorLine]:
    replication = check_replication(patient.file)
    stages = ", ".join(stage.task for stage in replication.list_stages())
    yield DoctorLine("file", "ok", f"{patient.file}: {stages}")
    for feed in replication.feed:
        for text in list_storage_warnings(feed.sink.storage):
            yield DoctorLine("feed", "warning", f"{feed.name}: {text}", f"sink-uri of the feed {feed.name}")


def _check_passwords(patient: Patient) -> Iterator[DoctorLine]:
    yield DoctorLine("passwords", "ok", f"all that {patient.unlocked.name} needs are set")
    for feed in patient.replication.feed:
        for key in list_plain_secrets(feed):
            remedy = f"{key}: env:NAME or airflow:CONN_ID"
            yield DoctorLine("passwords", "warning", f"feed {feed.name}: {key} has the password itself", remedy)


def _check_pd(patient: Patient) -> Iterator[DoctorLine]:
    source = patient.replication.source
    with open_placement(source) as placement:
        cluster = placement.pd.fetch_cluster_id()
    yield DoctorLine("cluster", "ok", f"{cluster} at {','.join(source.pd_urls)}")
    if not source.cluster_id:
        remedy = f'source.cluster-id = "{cluster}" refuses any other cluster'
        yield DoctorLine("cluster-id", "warning", "any cluster is accepted", remedy)


def _check_pd_clock(patient: Patient) -> Iterator[DoctorLine]:
    with open_placement(patient.replication.source) as placement:
        placement.pd.fetch_ts()
        skew_s = measure_skew_s(lambda: tso.extract_physical(placement.pd.fetch_ts()) / 1000)
    yield check_skew("clock", skew_s, "PD")


def _check_pumps(patient: Patient) -> Iterator[DoctorLine]:
    with open_placement(patient.replication.source) as placement:
        pumps, now = placement.registry.list_pumps(), placement.pd.fetch_ts()
        cluster, tls = placement.pd.fetch_cluster_id(), placement.tls
    if not pumps:
        yield DoctorLine("pumps", "failure", "no pump is registered", "start one: binlake pump --config pump.toml")
    problems = read_pump_problems(pumps, cluster, tls)
    for pump in pumps:
        yield _judge_pump(pump, now, problems.get(pump.node_id, ""))


def _judge_pump(pump: NodeStatus, now: int, problem: str) -> DoctorLine:
    check, found = f"pump {pump.node_id}", f"{pump.state} at {pump.host}"
    if problem:
        return DoctorLine(check, "failure", f"{found}: {problem}", "see its log; docs/operate/runbook.md")
    if is_ahead(pump, now):
        return DoctorLine(check, "failure", f"{found}: a binlog is from the future", "binlake pump set-aside")
    if is_stale(pump, now, _HEARTBEAT_S):
        return DoctorLine(check, "failure", f"{found}, but without a heartbeat", "start it: its data is still needed")
    return judge(check, pump.state == "online", found, "start it, or `binlake offline-pump` if it is to go", "warning")


def _check_consumer(patient: Patient) -> Iterator[DoctorLine]:
    own = name_consumer(patient.replication.name)
    with open_placement(patient.replication.source) as placement:
        state = next((node.state for node in placement.registry.list_drainers() if node.node_id == own), "")
    hold = describe_hold(own, state)
    found = hold or (f"{own} is {state}" if state else f"{own} is registered by the first window")
    yield judge("consumer", not hold, found, f"binlake resume-drainer --node-id {own}", "warning")


def _check_source(patient: Patient) -> Iterator[DoctorLine]:
    now_ms = time.time_ns() // 1_000_000
    hearing = hear_sources(patient.replication, build_nodes_view(patient.replication)["tidb"])
    for problem in find_source_problems(hearing, now_ms):
        verdict: Verdict = "failure" if problem.state in _GRAVE else "warning"
        yield DoctorLine("heard", verdict, problem.text, _choose_remedy(problem, patient))
    for source in hearing.sources:
        if source.is_heard:
            yield DoctorLine("heard", "ok", f"{source.name}: {source.state}, lag {source.lag_s or 0:g} s")


def _choose_remedy(problem: Problem, patient: Patient) -> str:
    if problem.remedy == DIAGNOSE:
        return "start the feeder or TiDB, or correct source.status-url"
    return fill_in(problem.remedy, patient.file, patient.replication.source.pd_urls)


def _check_rules(patient: Patient) -> Iterator[DoctorLine]:
    """As `binlake config check --against source`."""
    replication = patient.unlocked
    tables = select_own_tables(replication, read_table_names(replication.source))
    if not tables:
        yield DoctorLine("rules", "warning", "the source has no table yet", "binlake feeder status")
        return
    rules = Rules.of(replication)
    yield DoctorLine(
        "rules", "ok", f"{sum(rules.keeps(*name) for name in tables)} of {len(tables)} tables are replicated"
    )
    for match in match_rules(replication, tables):
        if not match.tables:
            remedy = f"binlake config check {patient.file} --against source"
            yield DoctorLine("rules", "warning", f"{match.place}: {match.pattern} matches no {match.seen}", remedy)
