"""Reads a pump's settings: flags before `PUMP_*` variables before the TOML file (tidb-binlog 2.12).

The file is the original's: all its keys are known, any other key is an error. Keys that have no meaning here are
accepted and named in the log, never ignored silently.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import structlog
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from binlake.common.tomlfile import build_readable_error, read_toml
from binlake.errors import ConfigError
from binlake.pump_service.pump.config import (
    TXN_TIMEOUT_S,
    PumpConfig,
    TlsFiles,
    parse_gc,
    parse_log_position,
    parse_size,
)
from binlake.pump_service.pump.future_timestamps import SLACK_S
from binlake.pump_service.pump.membership import Weights

log = structlog.get_logger()

_HEAD = """# The pump's configuration

`binlake pump --config FILE`, the original's TOML file. A flag (`--pd-urls`, or `-pd-urls` as the original writes it)
beats the variable (`PUMP_PD_URLS`), which beats the file. Unknown keys are errors."""

_ELSEWHERE = "LevelDB decides this itself here"
IGNORED = {
    "metrics-addr": "metrics are not pushed: let Prometheus read /metrics",
    "metrics-interval": "metrics are not pushed: let Prometheus read /metrics",
    "enable-debug": "there is no Go profile to serve",
    "max-message-size": "a binlog may be as large as protobuf allows: 2 GiB",
    "storage.kv_chan_cap": "bytes in flight are bounded, not their number",
} | {
    f"storage.kv.{name}": _ELSEWHERE
    for name in (
        "block-cache-capacity",
        "block-restart-interval",
        "block-size",
        "compaction-L0-trigger",
        "compaction-table-size",
        "compaction-total-size",
        "compaction-total-size-multiplier",
        "write-buffer",
        "write-L0-pause-trigger",
        "write-L0-slowdown-trigger",
    )
}
"""Keys of the original that have no effect here, each with the reason."""

_ALIASES = {"gen-binlog-interval": ("fake-binlog-interval",), "log-level": ("L",), "status-urls": ("status-url",)}


def _split_commas(value: object) -> object:
    return _split_words(value) if isinstance(value, str) else value


def _split_pairs(value: object) -> object:
    if not isinstance(value, str):
        return value
    return {key: rest for key, _, rest in (pair.partition("=") for pair in _split_words(value))}


def _split_words(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


Names = Annotated[tuple[str, ...], BeforeValidator(_split_commas)]
Pairs = Annotated[dict[str, str], BeforeValidator(_split_pairs)]


class _Section(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=lambda name: name.replace("_", "-"), populate_by_name=True
    )


class PumpSecuritySection(_Section):
    """TLS for everything the pump listens on."""

    ssl_ca: str = Field("", description="PEM file of the authority that signs callers; if set, callers must show one")
    ssl_cert: str = Field("", description="PEM file of the pump's certificate")
    ssl_key: str = Field("", description="PEM file of its key")
    cert_allowed_cn: Names = Field((), description="common names of callers that are allowed, comma list; none = any")
    admin_token_file: str = Field(
        "",
        description="Binlake only: file with the token that Binlake's own commands must send; "
        "empty = `admin-token` in data-dir, made at the first start",
    )
    protect_state: bool = Field(
        False, description="Binlake only: pause, close and gc also need the token; binlogctl cannot send it"
    )


class Kv(_Section):
    """LevelDB's settings: accepted, without effect, and named in the log."""

    block_cache_capacity: int = Field(8 << 20, description="ignored")
    block_restart_interval: int = Field(16, description="ignored")
    block_size: int = Field(4096, description="ignored")
    compaction_l0_trigger: int = Field(8, alias="compaction-L0-trigger", description="ignored")
    compaction_table_size: int = Field(64 << 20, description="ignored")
    compaction_total_size: int = Field(512 << 20, description="ignored")
    compaction_total_size_multiplier: float = Field(8.0, description="ignored")
    write_buffer: int = Field(64 << 20, description="ignored")
    write_l0_pause_trigger: int = Field(24, alias="write-L0-pause-trigger", description="ignored")
    write_l0_slowdown_trigger: int = Field(17, alias="write-L0-slowdown-trigger", description="ignored")


class StorageKeys(_Section):
    """How binlogs are stored."""

    sync_log: bool = Field(True, description="fdatasync before the answer; false loses acked binlogs in a power cut")
    kv_chan_cap: int = Field(1 << 20, alias="kv_chan_cap", description="ignored")
    slow_write_threshold: float = Field(
        1.0, ge=0, alias="slow_write_threshold", description="seconds; a longer write is logged"
    )
    stop_write_at_available_space: str = Field("10 gib", description="writes are refused below this free space")
    kv: Kv = Kv()


class ScoreKeys(_Section):
    """Weights of the score that the pump publishes (S0-31); only their ratio matters."""

    load: float = Field(1.0, ge=0, description="the machine's load")
    disk: float = Field(1.0, ge=0, description="the share of the disk in use")
    stored: float = Field(1.0, ge=0, description="the share of the disk that this pump's binlogs take")


class PumpFile(_Section):
    """Keys of the original, and a few of Binlake's at the end."""

    addr: str = Field("127.0.0.1:8250", description="host:port to listen on")
    advertise_addr: str = Field("", description="host:port to register, if it differs from addr")
    socket: str = Field("", description="path of a second, Unix listener")
    node_id: str = Field("", description="name in the registry; empty = host:port; the data directory remembers it")
    pd_urls: Names = Field(("http://127.0.0.1:2379",), description="PD addresses, comma list")
    data_dir: Path = Field(Path("data.pump"), description="directory of the binlogs")
    heartbeat_interval: float = Field(2.0, gt=0, description="seconds between writes of the registry entry")
    gc: str | float = Field("7", description='days to keep binlogs, or a duration such as "8h"; 0 = for ever')
    gen_binlog_interval: float = Field(
        3.0, gt=0, description="seconds without progress after which a fake binlog is written"
    )
    log_level: str = Field(
        "info", pattern="^(debug|info|warn|warning|error|fatal)$", description="lowest level that is logged"
    )
    log_file: str = Field("", description="file of the log; empty = stderr")
    metrics_addr: str = Field("", description="ignored: let Prometheus read /metrics")
    metrics_interval: int = Field(15, description="ignored")
    max_message_size: int = Field((1 << 31) - 1, description="ignored: the limit is 2 GiB, protobuf's own")
    enable_debug: bool = Field(False, description="ignored")
    status_urls: Names = Field(
        (), description="Binlake only: status ports that are asked about a transaction, comma list; flag --status-url"
    )
    gc_force_after: str | float = Field(
        "0",
        description="Binlake only: days after which binlogs are removed even if a consumer needs them; 0 = never",
    )
    txn_timeout: float = Field(
        TXN_TIMEOUT_S,
        gt=0,
        description="Binlake only: seconds after which TiKV is asked to end the transaction of a prewrite that still "
        "waits, and the prewrite is reported as overdue; no binlog is discarded for its age",
    )
    ask_tikv: bool = Field(
        True,
        description="Binlake only: ask TiKV for a transaction's outcome, if PD knows one; false = `status-urls` alone",
    )
    future_slack: float = Field(
        SLACK_S, gt=0, description="Binlake only: seconds by which a start_ts or commit_ts may be above PD's clock"
    )
    accept_damage: Names = Field(
        (),
        description="Binlake only: damaged parts of the value log to skip, `FILE@OFFSET,...` as a refused start or read"
        " reports them; what was there is missing downstream",
    )
    label: Pairs = Field(
        {}, description="Binlake only: group of this pump, `zone=a,...` or a table; writers choose by it"
    )
    security: PumpSecuritySection = PumpSecuritySection()
    storage: StorageKeys = StorageKeys()
    score: ScoreKeys = ScoreKeys()


# Top-level keys have flags. Some keys of sections have one, too: the original's (ssl-*), or Binlake's.
_SECTION_FLAGS = {
    "ssl-ca": "security",
    "ssl-cert": "security",
    "ssl-key": "security",
    "cert-allowed-cn": "security",
    "admin-token-file": "security",
    "stop-write-at-available-space": "storage",
}


def render_settings() -> str:
    """The configuration reference of the pump."""
    # It uses the page of the replications' model, which a serving pump does not need, so it is imported here.
    from binlake.config.command import render_model

    return render_model(_HEAD, PumpFile)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declare a flag for each key that has one. No flag has a default, so that only given flags are set."""
    add = parser.add_argument
    add("--config", "-config", type=Path, metavar="FILE", help="the original's TOML file")
    for name, text in _list_flags().items():
        spellings = [spelling for one in (name, *_ALIASES.get(name, ())) for spelling in _list_spellings(one)]
        add(*spellings, dest=f"set:{name}", metavar=name.rpartition("-")[2].upper(), help=text)


def read_flags(args: argparse.Namespace) -> dict[str, str]:
    """The flags that were given on the command line."""
    return {name: value for name in _list_flags() if (value := getattr(args, f"set:{name}")) is not None}


def read_settings(args: argparse.Namespace, environment: Mapping[str, str] = os.environ) -> PumpFile:
    """The settings of one pump: flags, then variables, then the file. Raises ConfigError."""
    values = _read_file(args.config)
    flags = read_flags(args)
    for name in _list_flags():
        text = flags.get(name, environment.get(f"PUMP_{name.upper().replace('-', '_')}"))
        if text is not None:
            place = values.setdefault(_SECTION_FLAGS[name], {}) if name in _SECTION_FLAGS else values
            place[name] = text
    try:
        return PumpFile.model_validate(values)
    except ValidationError as error:
        raise build_readable_error(error, PumpFile, args.config or "flags and PUMP_* variables") from None


def to_config(settings: PumpFile) -> PumpConfig:
    """The pump's configuration from its settings. Raises ConfigError."""
    security, storage = settings.security, settings.storage
    return PumpConfig(
        pd_urls=settings.pd_urls,
        addr=settings.addr,
        advertise_addr=settings.advertise_addr,
        socket=settings.socket,
        data_dir=settings.data_dir,
        node_id=settings.node_id,
        status_urls=settings.status_urls,
        gen_binlog_interval_s=settings.gen_binlog_interval,
        heartbeat_interval_s=settings.heartbeat_interval,
        stop_write_at_available_space=parse_size(storage.stop_write_at_available_space),
        sync_log=storage.sync_log,
        slow_write_threshold_s=storage.slow_write_threshold,
        gc_s=parse_gc(settings.gc),
        gc_force_after_s=parse_gc(settings.gc_force_after),
        txn_timeout_s=settings.txn_timeout,
        future_slack_s=settings.future_slack,
        ask_tikv=settings.ask_tikv,
        tls=TlsFiles(security.ssl_ca, security.ssl_cert, security.ssl_key, security.cert_allowed_cn),
        admin_token_file=security.admin_token_file,
        protect_state=security.protect_state,
        accepted_damage=frozenset(map(parse_log_position, settings.accept_damage)),
        label=settings.label,
        score_weights=Weights(settings.score.load, settings.score.disk, settings.score.stored),
    )


def find_ignored_keys(settings: PumpFile) -> dict[str, str]:
    """The keys that are set but have no effect, each with the reason."""
    return {key: IGNORED[key] for key in _set_keys(settings, "") if key in IGNORED}


def _set_keys(section: BaseModel, prefix: str) -> list[str]:
    keys = []
    for name in section.model_fields_set:
        value = getattr(section, name)
        key = prefix + (type(section).model_fields[name].alias or name)
        keys += _set_keys(value, f"{key}.") if isinstance(value, BaseModel) else [key]
    return keys


def _read_file(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        return read_toml(path)
    except OSError as error:
        raise ConfigError(f"the configuration file cannot be read: {error.strerror}", where={"file": path}) from None


def _list_flags() -> dict[str, str]:
    flags = {}
    for model in (PumpFile, PumpSecuritySection, StorageKeys):
        for name, info in model.model_fields.items():
            alias = info.alias or name
            if info.description and (model is PumpFile or alias in _SECTION_FLAGS):
                flags[alias] = info.description
    return flags


def _list_spellings(name: str) -> tuple[str, ...]:
    return (f"-{name}",) if len(name) == 1 else (f"--{name}", f"-{name}")
