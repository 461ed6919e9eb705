"""Builds a feed's section from the options of `create` and `update`. A value that is set twice must be equal.

They come from TiCDC's configuration (`--config FILE`), too.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from pydantic import ValidationError

from binlake.common.tomlfile import build_readable_error, read_toml
from binlake.config.feed import FeedSection
from binlake.config.protocols import AvroOptions
from binlake.config.sinkuri import parse_sink_uri
from binlake.errors import ConfigError

_KAFKA = "sink.kafka-config"
_CODEC = f"{_KAFKA}.codec-config"
_TAKEN = ("filter.rules", "sink.dispatchers", "sink.protocol", "sink.schema-registry", "sink.subject-name-strategy",
          "sink.terminator")  # fmt: skip
_CSV = ("delimiter", "quote", "null", "include-commit-ts", "output-old-value", "binary-encoding-method")
_URI_WORDS = {
    _KAFKA: ("partition-num", "replication-factor", "max-message-bytes", "compression", "kafka-client-id",
             "auto-create-topic", "sasl-user", "sasl-password", "sasl-mechanism", "enable-tls", "ca", "cert", "key",
             "output-raw-change-event"),
    _CODEC: ("enable-tidb-extension", "avro-decimal-handling-mode", "avro-bigint-unsigned-handling-mode"),
    "sink.cloud-storage-config": ("file-size", "output-raw-change-event"),
    "sink": ("date-separator", "file-index-width", "delete-only-output-handle-key-columns", "debezium-disable-schema"),
    "sink.open": ("output-old-value",),
    "sink.debezium": ("output-old-value",),
}  # fmt: skip
"""Keys that are also parameters of the sink URI."""
_AS_HERE: Mapping[str, Any] = {
    "case-sensitive": False, "enable-old-value": True, "force-replicate": False, "ignore-ineligible-table": False,
    "check-gc-safe-point": True, "enable-sync-point": False, "bdr-mode": False, "sink.transaction-atomicity": "none",
    "sink.only-output-updated-columns": False, "sink.delete-only-output-handle-key-columns": False,
    "sink.enable-kafka-sink-v2": False, "consistent.level": "none", "integrity.integrity-check-level": "none",
    f"{_KAFKA}.output-raw-change-event": False, f"{_KAFKA}.insecure-skip-verify": False,
    f"{_KAFKA}.required-acks": -1,
}  # fmt: skip
"""Keys with their only supported value, which is the behaviour of a feed."""
_FILTERS = (
    "filters belong to the replication: see [filter], [[filters]], [[expression-filter]] in docs/reference/filters.md"
)
_TUNING = "it tunes TiCDC's own processes and has no effect here: omit it"
_SASL = "a feed supports SASL by PLAIN and SCRAM"
_SYNCPOINTS = "a feed has no syncpoint: the lake answers for any commit_ts"
_ELSEWHERE: Mapping[str, str] = {
    **dict.fromkeys(("memory-quota", "mounter", "scheduler", "sort-engine", "sort-dir", "synced-status"), _TUNING),
    **dict.fromkeys(("sink.encoder-concurrency", "sink.advance-timeout-in-sec"), _TUNING),
    **dict.fromkeys(("sink.cloud-storage-config.worker-count", "sink.cloud-storage-config.flush"), _TUNING),
    **dict.fromkeys((f"{_KAFKA}.dial-timeout", f"{_KAFKA}.write-timeout", f"{_KAFKA}.read-timeout"), _TUNING),
    **dict.fromkeys(("filter.event-filters", "filter.ignore-txn-commit-ts", "filter.ddl-allow-list"), _FILTERS),
    **dict.fromkeys((f"{_KAFKA}.sasl-gssapi", f"{_KAFKA}.sasl-oauth"), _SASL),
    **dict.fromkeys(("sync-point-interval", "sync-point-retention"), _SYNCPOINTS),
    "changefeed-error-stuck-duration": "transient errors are retried as set by [airflow] retries",
    "consistent": "the lake is the redo log: omit it",
    "cyclic-replication": "use [loopback] of the replication",
    "filter.ignore-txn-start-ts": "select transactions by commit_ts: [filter] ignore-txn-commit-ts of the replication",
    "integrity": "row checksums are not sent",
    "sql-mode": "definitions are read from TableInfo, independent of it: omit it",
    "sink.column-selectors": "a message has all columns of its row",
    "sink.mysql-config": "a SQL target is [target] of the replication",
    "sink.pulsar-config": "a feed cannot send to Pulsar",
    "sink.safe-mode": "use [target] safe-mode of the replication",
    f"{_KAFKA}.glue-schema-registry-config": "only Confluent's protocol is supported",
    f"{_KAFKA}.kafka-version": "the client negotiates the version with the brokers: omit it",
    f"{_KAFKA}.large-message-handle": "raise max-message-bytes, or leave the table out by [filter] rules",
    f"{_CODEC}.avro-enable-watermark": "an Avro topic has only rows: omit it",
    f"{_CODEC}.encoding-format": "omit it",
    f"{_CODEC}.max-batch-size": "a message has one row: omit it",
}
_DISPATCHER = ("matcher", "topic", "partition", "dispatcher")


@dataclass(frozen=True)
class Document:
    """`keys` of a feed's section; `words`: parameters for its sink URI."""

    keys: Mapping[str, Any] = field(default_factory=dict)
    words: Mapping[str, str] = field(default_factory=dict)


def read_document(path: Path) -> Document:
    """The configuration in the file `path`. Raises ConfigError."""
    try:
        raw = read_toml(path)
    except OSError as error:
        raise ConfigError(f"the configuration cannot be read: {error.strerror}", where={"config": path}) from None
    keys: dict[str, Any] = {}
    words: dict[str, str] = {}
    for name, value in _flatten(raw):
        section, _, last = name.rpartition(".")
        if name in _AS_HERE and value == _AS_HERE[name]:
            continue
        if name in _TAKEN:
            keys[last] = _read_dispatchers(value, path) if last == "dispatchers" else value
        elif section == "sink.csv" and last in _CSV:
            keys.setdefault("csv", {})[last] = value
        elif last in _URI_WORDS.get(section, ()):
            words[last] = str(value).lower() if isinstance(value, bool) else str(value)
        else:
            raise _build_refusal_error(name, value, path)
    if "protocol" in keys:
        words["protocol"] = str(keys.pop("protocol"))
    if not keys.get("terminator", "-"):
        # An empty terminator is TiCDC's default.
        del keys["terminator"]
    return Document(keys, words)


def _flatten(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _build_refusal_error(name: str, value: Any, path: Path) -> ConfigError:
    if name in _AS_HERE:
        hint = f"a feed supports only {name} = {str(_AS_HERE[name]).lower()}"
        return ConfigError("a value of TiCDC has no counterpart here", where={"config": path, name: value}, hint=hint)
    hint = next((hint for known, hint in _ELSEWHERE.items() if f"{name}.".startswith((f"{known}.", f"{known}-"))), "")
    if hint:
        return ConfigError(f"`{name}` of TiCDC's configuration is not supported", where={"config": path}, hint=hint)
    known = [*_TAKEN, *_AS_HERE, *(f"sink.csv.{word}" for word in _CSV)]
    known += [*(f"{section}.{word}" for section, words in _URI_WORDS.items() for word in words)]
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean `{close[0]}`?" if close else f"known: {', '.join(sorted(known))}"
    return ConfigError(f"unknown key `{name}`", where={"config": path}, hint=hint)


def _read_dispatchers(entries: Any, path: Path) -> list[dict[str, Any]]:
    """Each entry in a feed's form. TiCDC called `partition` `dispatcher` before 6.1."""
    dispatchers = []
    for entry in entries if isinstance(entries, list) else [entries]:
        if not isinstance(entry, dict):
            raise ConfigError(
                "a dispatcher must be a table", where={"config": path}, hint="{matcher = ['*.*'], topic = \"...\"}"
            )
        unknown = [name for name in entry if name not in _DISPATCHER]
        if unknown:
            raise ConfigError(
                f"`{unknown[0]}` of a dispatcher is not supported", where={"config": path},
                hint="a row's partition is chosen by its key (index-value), its table (table) or its commit_ts (ts)",
            )  # fmt: skip
        renamed = {"partition" if name == "dispatcher" else name: value for name, value in entry.items()}
        dispatchers.append(renamed)
    return dispatchers


Keys = Mapping[str, Any]


def build_section(given: Keys, config: str, base: Keys | None = None) -> FeedSection:
    """The feed of the keys `given`, the file `config` (empty: none), and `base`, whose keys both override.

    Raises ConfigError.
    """
    document = read_document(Path(config)) if config else Document()
    for name, value in document.keys.items():
        if given.get(name, value) != value:
            raise _build_given_twice_error(name, config)
    keys = {**(base or {}), **document.keys, **given}
    uri = given.get("sink-uri")
    keys["sink-uri"] = _add_parameters(str(keys["sink-uri"]), document.words, config if uri else "")
    sink = parse_sink_uri(keys["sink-uri"])
    if base is None and "dispatchers" not in keys and sink.topic and isinstance(sink.options, AvroOptions):
        # Without dispatchers, TiCDC sends all tables to the topic of the URI (S2-43).
        keys["dispatchers"] = [{"matcher": ["*.*"], "topic": sink.topic}]
    keys |= {"dispatchers": _add_topics(keys["dispatchers"], sink.topic)} if "dispatchers" in keys else {}
    try:
        feed = FeedSection.model_validate(keys)
    except ValidationError as error:
        raise build_readable_error(error, FeedSection, config or "the command's options") from None
    feed.require_rules()
    return feed


def dump_section_keys(feed: FeedSection) -> dict[str, Any]:
    """The keys of the feed's section."""
    return feed.model_dump(mode="json", by_alias=True, exclude_unset=True)


def _add_topics(dispatchers: Any, default: str) -> list[dict[str, Any]]:
    """Add the sink URI's topic to dispatchers without a topic, as TiCDC does."""
    for entry in dispatchers:
        if not entry.get("topic", default):
            raise ConfigError(
                "a dispatcher has no topic", where={"matcher": entry.get("matcher", "")},
                hint='give it a topic with {schema} and {table}, such as "tidb_{schema}_{table}"',
            )  # fmt: skip
    return [{**entry, "topic": entry.get("topic", default)} for entry in dispatchers]


def _add_parameters(uri: str, words: Mapping[str, str], config: str) -> str:
    """`uri` with the parameters `words` of the file `config`, which must not contradict `uri`; empty: they override."""
    present = dict(parse_qsl(urlsplit(uri).query, keep_blank_values=True))
    for name, value in words.items():
        if config and present.get(name, value) != value:
            raise _build_given_twice_error(name, config)
    more = {name: value for name, value in words.items() if present.get(name) != value}
    if not more:
        return uri
    parts = urlsplit(uri)
    return parts._replace(query=urlencode({**present, **more}, safe=":/,{}")).geturl()


def _build_given_twice_error(name: str, config: str) -> ConfigError:
    return ConfigError(
        f"`{name}` is set twice, with different values", where={"config": config}, hint="remove it from the file"
    )
