"""Finds all settings that have the right type but make no sense, when a replication's TOML is read.

These checks need no server, secret or import; `config check` also checks notifiers, which are imported later.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from itertools import pairwise
from pkgutil import resolve_name
from urllib.parse import unquote, urlsplit

from binlake import tso
from binlake.common.secrets import names_secret
from binlake.common.sections import SecuritySection
from binlake.config.feed import FeedSection
from binlake.config.model import Replication
from binlake.config.servers import SourceSql, TargetSection, ValidatedSource
from binlake.config.sinkuri import STORAGE_SECRETS, parse_store_address
from binlake.errors import ConfigError

PRESETS = frozenset({"@once", "@continuous"})
# Always has a next time; the default schedule is one.
_EVERY_MINUTES = re.compile(r"\*/([1-9]|[1-5][0-9]) \* \* \* \*")
CRON_PRESETS = frozenset({"@hourly", "@daily", "@weekly", "@monthly", "@quarterly", "@yearly"})
EVERY = re.compile(r"every (?P<count>[1-9][0-9]*) ?(?P<unit>[smh])")
_URL = re.compile(r"(?P<scheme>[a-z]+)://(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::(?P<port>[0-9]{1,5}))?/?")
_HOST = re.compile(r"[A-Za-z0-9._:\[\]-]{1,253}")
_NAME = re.compile(r"[^\x00-\x1f`/\\. ][^\x00-\x1f`/\\]{0,63}")


def find_problems(replication: Replication) -> list[str]:
    """One line per problem: the key, its value, what is allowed."""
    parts = (
        _check_timestamps,
        _check_addresses,
        _check_files_of_tls,
        _check_secrets,
        _check_paths,
        _check_patterns,
        _check_schedules,
        _check_seconds,
        _check_merged_tables,
    )
    return [line for part in parts for line in part(replication)]


def find_notifier_problems(replication: Replication) -> list[str]:
    """One line per notifier that cannot be imported on this machine or is not callable."""
    problems = []
    for key, rule in _list_notifiers(replication):
        try:
            named = resolve_name(rule)
        except (ImportError, AttributeError, ValueError) as error:
            problems.append(f"`{key}`: {rule} cannot be imported on this machine: {error}")
            continue
        if not callable(named):
            problems.append(f"`{key}`: {rule} is not callable")
    return problems


def _list_notifiers(replication: Replication) -> Iterator[tuple[str, str]]:
    airflow = replication.airflow
    rules = {"on-failure": airflow.on_failure, "on-lag": airflow.on_lag, "on-silence": airflow.on_silence}
    for key, rule in rules.items():
        if rule is not None:
            yield f"airflow.{key}.notifier", rule.notifier


def _check_timestamps(replication: Replication) -> Iterator[str]:
    stops = replication.window.stop_at
    texts = [("window.stop-at", text) for text in stops]
    texts += [("filter.ignore-txn-commit-ts", text) for text in replication.filter.ignore_txn_commit_ts]
    texts += [("ddl-replacement.commit-ts", entry.commit_ts) for entry in replication.ddl_replacement]
    texts += [("ddl-injection.commit-ts", entry.commit_ts) for entry in replication.ddl_injection]
    texts += [("feed.start-ts", feed.start_ts) for feed in replication.feed if int(feed.start_ts or 0)]
    texts += [("feed.target-ts", feed.target_ts) for feed in replication.feed if feed.target_ts]
    if replication.initial_commit_ts not in ("-1", "0"):
        texts.append(("initial-commit-ts", replication.initial_commit_ts))
    for key, text in texts:
        try:
            if not tso.parse_ts(text):
                yield f"`{key}`: 0 is not the commit_ts of a transaction"
        except ValueError as error:
            yield f"`{key}`: {error}"
    if any(int(entry) >= int(following) for entry, following in pairwise(stops)):
        yield "`window.stop-at`: the commit_ts must be ascending"


def _check_addresses(replication: Replication) -> Iterator[str]:
    source = replication.source
    if not source.pd_urls:
        yield "`source.pd-urls`: no address is given"
    urls = [("source.pd-urls", url) for url in source.pd_urls]
    urls += [("source.status-url", url.strip()) for url in source.status_url.split(",")]
    for key, url in urls:
        full = url if "://" in url or key.endswith("status-url") else f"http://{url}"
        match = _URL.fullmatch(full)
        port = 0 if match is None else int(match["port"] or (0 if key.endswith("pd-urls") else 80))
        if match is None or match["scheme"] not in ("http", "https") or not 0 < port < 1 << 16:
            # The text is not shown, since it may contain a password.
            yield f"`{key}`: an address must be http://host:port or https://host:port, without user and path"
    for key, server in _list_servers(replication):
        if server is not None and not _HOST.fullmatch(server.host):
            yield f"`{key}.host`: {server.host!r} is not a host name or address"
        if server is not None and not server.user.strip():
            yield f"`{key}.user`: empty"


def _check_files_of_tls(replication: Replication) -> Iterator[str]:
    sections: list[tuple[str, SecuritySection | None]] = [("source", replication.source.security)]
    sections += [(key, server.security) for key, server in _list_servers(replication) if server is not None]
    for key, security in sections:
        if security is None:
            continue
        if any(file and not file.startswith("/") for file in security.list_files()):
            yield f"`{key}.security`: the paths of files must begin with /"
        if bool(security.ssl_cert) != bool(security.ssl_key):
            yield f"`{key}.security`: set both ssl-cert and ssl-key, or neither"


def _check_merged_tables(replication: Replication) -> Iterator[str]:
    """Mode ordered cannot apply rows of several tables to one; in the end the stage convert refuses them."""
    if replication.target is None or replication.target.mode != "ordered":
        return
    for route in replication.routes:
        extracts = route.extract_table or route.extract_schema or route.extract_source
        patterns = (route.schema_pattern, route.table_pattern)
        if route.target_table and not extracts and any(_MATCHES_SEVERAL.search(pattern) for pattern in patterns):
            yield (
                f"`routes`: {'/'.join(patterns)} merges tables into {route.target_schema}.{route.target_table}, whose"
                ' rows target.mode = "ordered" cannot tell apart: choose mode auto, atomic or parallel, or add an'
                " extract column to the route"
            )


_MATCHES_SEVERAL = re.compile(r"^~|[*?\[]")


def _check_store_address(uri: str) -> Iterator[str]:
    try:
        parse_store_address(uri)
    except ConfigError as error:
        yield f"`relay.log-dir`: {error}"


_STORES_NOT_SERVED = {
    **dict.fromkeys(("gs", "gcs"), "Google Cloud Storage by its own interface"),
    **dict.fromkeys(("hdfs", "viewfs"), "HDFS"),
}
_AZURE_SCHEMES = ("abfs", "abfss", "az", "azure", "wasb", "wasbs")
_AZURE_PLACE = re.compile(r"abfss://[a-z0-9$-]{3,63}@([a-z0-9]{3,24})\.dfs\.core\.windows\.net/[^/].*")


def _check_object_store(replication: Replication) -> Iterator[str]:
    scheme, _, rest = replication.lake.path.partition("://")
    if scheme in _AZURE_SCHEMES:
        yield from _check_azure(replication)
    elif scheme in _STORES_NOT_SERVED:
        yield (
            f"`lake.path`: {_STORES_NOT_SERVED[scheme]} is not served: two writers must not be able to overwrite each"
            " other's commits, which is tested for the conditional puts of S3 and Azure only. Choose"
            " `s3://bucket/prefix`, also of a store that is compatible with S3, or a folder"
        )
    elif scheme not in ("s3", "s3a") or not rest.strip("/"):
        yield f"`lake.path`: a URI with the scheme {scheme!r} is neither a folder nor `s3://bucket/prefix`"
    elif "@" in rest.partition("/")[0]:
        yield "`lake.path`: has credentials, which belong into the environment (AWS_ACCESS_KEY_ID, …)"


def _check_azure(replication: Replication) -> Iterator[str]:
    found, endpoint = _AZURE_PLACE.fullmatch(replication.lake.path), replication.lake.storage.endpoint.rstrip("/")
    if found is None:
        yield "`lake.path`: a place in Azure's storage is `abfss://container@account.dfs.core.windows.net/prefix`"
    elif endpoint and not endpoint.endswith(f"/{found[1]}"):
        yield f"`lake.storage.endpoint`: must end with the account of `lake.path`, as in {endpoint}/{found[1]}"


def _check_paths(replication: Replication) -> Iterator[str]:
    path, folder = replication.lake.path, replication.relay.log_dir
    if not path.strip():
        yield "`lake.path`: empty"
    elif path != path.strip() or not (path.startswith("/") or "://" in path):
        yield (
            f"`lake.path`: {path!r} is relative, so it depends on the working directory; it must begin with / or a"
            " scheme"
        )
    elif "://" in path and not path.startswith("file://"):
        yield from _check_object_store(replication)
    if "://" in folder:
        yield from _check_store_address(folder)
    elif folder and (folder != folder.strip() or not folder.startswith("/")):
        yield f"`relay.log-dir`: {folder!r} is relative, so it depends on the working directory; it must begin with /"
    loopback, target = replication.loopback, replication.target
    names = [("loopback.mark-schema", loopback.mark_schema), ("loopback.mark-table", loopback.mark_table)]
    names += [("target.checkpoint-schema", target.checkpoint_schema)] if target is not None else []
    for rule in replication.routes:
        names += [("routes.target-schema", rule.target_schema)]
        names += [("routes.target-table", rule.target_table)] if rule.target_table else []
    for key, name in names:
        if not _NAME.fullmatch(name) or name.endswith(" "):
            yield f"`{key}`: {name!r} is not the name of a database or table"


def _list_servers(replication: Replication) -> Iterator[tuple[str, SourceSql | TargetSection | ValidatedSource | None]]:
    yield "source.sql", replication.source.sql
    yield "target", replication.target
    for server in replication.validation.source:
        yield "validation.source", server


def _check_secrets(replication: Replication) -> Iterator[str]:
    for key, server in _list_servers(replication):
        if server is not None and server.password == "env:":
            yield f"`{key}.password`: the name of an environment variable is missing after env:"
        elif server is not None:
            yield from find_plain_password(f"{key}.password", server.password, replication.plain_passwords)


def find_plain_password(key: str, password: str, allowed: Collection[str]) -> Iterator[str]:
    """The problem if `password` itself stands in the file and its `key` is not one of `allowed`."""
    if password and not names_secret(password) and key not in allowed:
        yield (
            f"`{key}`: the password itself is in the file; write env:NAME or airflow:CONN_ID, or allow it:"
            f' plain-passwords = ["{key}"]'
        )


def list_plain_secrets(feed: FeedSection) -> list[str]:
    """The keys of `feed` that have a password themselves instead of naming it."""
    kafka, storage = feed.sink.kafka, feed.sink.storage
    texts = {"sasl-password": kafka.sasl_password if kafka is not None else ""}
    texts |= (
        {key: text for key, text in storage.access.items() if key in STORAGE_SECRETS} if storage is not None else {}
    )
    texts["schema-registry"] = unquote(urlsplit(feed.schema_registry).password or "")
    return [key for key, text in texts.items() if text and not names_secret(text)]


def _check_patterns(replication: Replication) -> Iterator[str]:
    for rule in replication.routes:
        for key, regexp in (
            ("table", rule.extract_table and rule.extract_table.table_regexp),
            ("schema", rule.extract_schema and rule.extract_schema.schema_regexp),
            ("source", rule.extract_source and rule.extract_source.source_regexp),
        ):
            if regexp is not None and "(" not in regexp:
                yield (
                    f"`routes.extract-{key}`: {regexp!r} captures nothing; put the part that the column stores in"
                    " parentheses"
                )
    for event in replication.filters:
        if not all(text.strip() for text in event.sql_pattern):
            yield "`filters.sql-pattern`: an empty pattern matches every DDL"
    for key, text in _list_names(replication):
        yield from _check_pattern(key, text)


def _list_names(replication: Replication) -> Iterator[tuple[str, str]]:
    lists, choice, target = replication.block_allow_list, replication.filter, replication.target
    names = [*choice.ignore_schemas, *choice.replicate_do_db, *((*lists.do_dbs, *lists.ignore_dbs) if lists else ())]
    tables = [*choice.ignore_table, *choice.replicate_do_table, *(target.tables if target else ())]
    tables += [*lists.do_tables, *lists.ignore_tables] if lists else []
    names += [part for table in tables for part in (table.db_name, table.tbl_name)]
    yield from (("filter, block-allow-list, target.tables", name) for name in names)
    for key, rules in (("filters", replication.filters), ("routes", replication.routes)):
        for rule in rules:
            yield f"{key}.schema-pattern", rule.schema_pattern
            if rule.table_pattern:
                yield f"{key}.table-pattern", rule.table_pattern
    for own in replication.expression_filter:
        yield "expression-filter.schema", own.schema_
        yield "expression-filter.table", own.table


def _check_seconds(replication: Replication) -> Iterator[str]:
    for key, section in {"source": replication.source, "window": replication.window, "airflow": replication.airflow,
                         "target": replication.target}.items():  # fmt: skip
        for name, value in section or ():
            if name.endswith(("_s", "seconds")) and isinstance(value, int | float) and value > _YEAR_S:
                yield f"`{key}.{name.replace('_', '-')}`: {value:g} seconds are more than a year"


_YEAR_S = 366 * 86400


def _check_pattern(key: str, text: str) -> Iterator[str]:
    if not text.removeprefix("~").strip() or text != text.strip():
        yield f"`{key}`: {text!r} is neither a name nor a regular expression after ~"
    elif text.startswith("~"):
        try:
            re.compile(text[1:])
        except re.error as error:
            yield f"`{key}`: {text!r} is not a regular expression: {error}"


def _check_schedules(replication: Replication) -> Iterator[str]:
    airflow = replication.airflow
    for key, text in (
        ("airflow.schedule", airflow.schedule),
        ("airflow.verify.schedule", airflow.verify.schedule),
        ("airflow.maintain.schedule", airflow.maintain.schedule),
    ):
        if text.strip() and text.strip() not in PRESETS and not EVERY.fullmatch(text.strip()) and not is_cron(text):
            yield (
                f"`{key}` is not valid: {text!r}; use a cron expression with a next time (`*/5 * * * *`), `every 10s`,"
                " `@continuous`, or empty for no schedule"
            )
    if not is_cron(interval := airflow.backfill.interval):
        yield f"`airflow.backfill.interval` is not valid: {interval!r}; use a cron expression or a preset"
    for key, pool in (("pool", airflow.pool), ("owner", airflow.owner), ("spark-conn-id", airflow.spark_conn_id)):
        if pool != pool.strip() or not pool:
            yield f"`airflow.{key}`: {pool!r} is not a name"


def is_cron(text: str) -> bool:
    """True for a cron expression that has a next time, and for cron presets."""
    text = text.strip()
    if text in CRON_PRESETS or _EVERY_MINUTES.fullmatch(text):
        return True
    # Imported late: it is slow to load, each task and command reads a configuration, and few have other schedules.
    from croniter import croniter
    from croniter.croniter import CroniterBadDateError

    if not croniter.is_valid(text):
        return False
    try:
        croniter(text).get_next()
    except CroniterBadDateError:
        return False
    return True
