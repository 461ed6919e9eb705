"""The pump's settings: names and defaults of the original (tidb-binlog 2.12), read once and frozen.

`binlake.pump_service.pump.settings` makes them from flags, environment and the TOML file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from binlake.errors import ConfigError
from binlake.pump_service.pump.future_timestamps import SLACK_S
from binlake.pump_service.pump.membership import Weights
from binlake.pump_service.pump.record import Pointer
from binlake.pump_service.pump.retention import INTERVAL_S, KEEP_S
from binlake.pump_service.pump.vlog import SEGMENT_BYTES
from binlake.rpc import Tls

DAY_S = 86400.0
TXN_TIMEOUT_S = 600.0  # MISSION S0-51
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": DAY_S}

_UNITS = {"": 1, "b": 1}
_UNITS |= {f"{letter}b": 1000**power for power, letter in enumerate("kmgtp", start=1)}
_UNITS |= {f"{letter}ib": 1024**power for power, letter in enumerate("kmgtp", start=1)}


@dataclass(frozen=True)
class TlsFiles:
    """PEM files of `[security]`; all empty = no TLS. `allowed_cn`: common names of callers, empty = any."""

    ca: str = ""
    cert: str = ""
    key: str = ""
    allowed_cn: tuple[str, ...] = ()

    @property
    def wanted(self) -> bool:
        """Whether TLS is configured."""
        return bool(self.cert or self.key or self.ca)

    def to_tls(self) -> Tls | None:
        """For server and clients of binlake.rpc; None = no TLS."""
        return Tls.of(self.ca, self.cert, self.key, self.allowed_cn)


@dataclass(frozen=True)
class PumpConfig:
    """Settings of one pump. Intervals in seconds, sizes in bytes. If `addr` has port 0, the system chooses a free port.

    An empty `node_id` means host:port of the advertised address, remembered in the data directory. `socket` is the path
    of an additional Unix socket. `gc_s` 0 = binlogs are never collected; `gc_force_after_s` 0 = never before every
    registered consumer has read them. `ask_tikv`: if PD knows regions, ask TiKV for the outcome of a prewrite.
    `admin_token_file`: empty = `admin-token` in the data directory; `protect_state`: see Gate.
    """

    pd_urls: tuple[str, ...] = ("http://127.0.0.1:2379",)
    addr: str = "127.0.0.1:8250"
    advertise_addr: str = ""
    data_dir: Path = Path("data.pump")
    node_id: str = ""
    status_urls: tuple[str, ...] = ()
    gen_binlog_interval_s: float = 3.0
    heartbeat_interval_s: float = 2.0
    resolve_interval_s: float = 1.0
    stop_write_at_available_space: int = 10 << 30
    sync_log: bool = True
    segment_bytes: int = SEGMENT_BYTES
    socket: str = ""
    tls: TlsFiles = TlsFiles()
    admin_token_file: str = ""
    protect_state: bool = False
    gc_s: float = KEEP_S
    gc_force_after_s: float = 0.0
    gc_interval_s: float = INTERVAL_S
    txn_timeout_s: float = TXN_TIMEOUT_S
    ask_tikv: bool = True
    slow_write_threshold_s: float = 1.0
    future_slack_s: float = SLACK_S
    accepted_damage: frozenset[Pointer] = frozenset()
    label: Mapping[str, str] = field(default_factory=dict)
    score_weights: Weights = field(default_factory=Weights)

    @property
    def token_file(self) -> Path:
        """The path of the file with the token for commands."""
        return Path(self.admin_token_file) if self.admin_token_file else self.data_dir / "admin-token"

    def __post_init__(self) -> None:
        host, _, port = self.addr.rpartition(":")
        if not host or not port.isdigit():
            raise ConfigError("addr must be HOST:PORT", where={"addr": self.addr})
        if host in ("0.0.0.0", "[::]") and not self.advertise_addr:
            raise ConfigError(
                "a pump that listens on all addresses needs advertise-addr, the address to register",
                where={"addr": self.addr},
                hint="set --advertise-addr",
            )
        if not self.pd_urls:
            raise ConfigError("no PD url", hint="set --pd-urls")
        if self.tls.wanted and not (self.tls.cert and self.tls.key):
            raise ConfigError("TLS needs ssl-cert and ssl-key", hint="set both in [security], or neither")
        if min(self.gen_binlog_interval_s, self.heartbeat_interval_s, self.resolve_interval_s) <= 0:
            raise ConfigError("intervals must be above 0 seconds")


def parse_size(text: str) -> int:
    """Bytes of "10 gib" (2^30), "10GB" (10^9), "1048576". Raises ConfigError."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", text.lower())
    if match is None or match[2] not in _UNITS:
        raise ConfigError("not a size", where={"value": text}, hint='write it as "10 gib" or "500 MB"')
    return int(float(match[1]) * _UNITS[match[2]])


def parse_log_position(text: str) -> Pointer:
    """Parse a position in the value log, such as "000012.vlog@4711". Raises ConfigError."""
    match = re.fullmatch(r"(\d+)\.vlog@(\d+)", text)
    if match is None:
        raise ConfigError(
            "not a position in the value log", where={"accept-damage": text}, hint="write 000012.vlog@4711"
        )
    return Pointer(int(match[1]), int(match[2]))


def parse_gc(value: str | float) -> float:
    """Seconds of `gc`: days as a number, or a duration such as "8h" or "1h30m"; 0 = never. Raises ConfigError."""
    text = str(value).strip().lower()
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return float(text) * DAY_S
    parts = re.findall(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)", text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ConfigError(
            "gc is not a duration", where={"gc": value}, hint='days as a number, or a duration such as "8h"'
        )
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)
