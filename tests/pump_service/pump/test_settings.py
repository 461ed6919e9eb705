"""The pump's settings: the original's file, flags before variables before the file, unknown keys refused."""

from __future__ import annotations

import argparse
import json
import resource
from pathlib import Path

import pytest

from binlake.errors import BinlakeError, ConfigError
from binlake.pump_service.pump.command import PumpCommand, raise_file_limit
from binlake.pump_service.pump.config import DAY_S, PumpConfig, parse_gc, parse_size
from binlake.pump_service.pump.record import Pointer
from binlake.pump_service.pump.settings import find_ignored_keys, read_settings, to_config

ORIGINAL = """
addr = "127.0.0.1:8260"
advertise-addr = "pump:8260"
socket = ""
node-id = "p1"
gc = 3
data-dir = "data.pump.1"
heartbeat-interval = 5
pd-urls = "http://a:2379,http://b:2379"
log-level = "debug"
log-file = "pump.log"
gen-binlog-interval = 7

[security]
ssl-ca = "/ca.pem"
ssl-cert = "/cert.pem"
ssl-key = "/key.pem"
cert-allowed-cn = ["tidb", "drainer"]

[storage]
sync-log = false
kv_chan_cap = 4096
slow_write_threshold = 0.5
stop-write-at-available-space = "20 gib"

[storage.kv]
block-cache-capacity = 8388608
compaction-L0-trigger = 8
write-L0-pause-trigger = 24
"""


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(exit_on_error=False)
    PumpCommand().add_arguments(parser)
    return parser.parse_args(words)


def config(*words: str, environment: dict[str, str] | None = None) -> PumpConfig:
    return to_config(read_settings(parsed(*words), environment or {}))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "pump.toml"
    path.write_text(ORIGINAL)
    return path


def test_the_originals_file_is_understood(file: Path) -> None:
    settings = config("--config", str(file))
    assert (settings.addr, settings.advertise_addr, settings.node_id) == ("127.0.0.1:8260", "pump:8260", "p1")
    assert settings.pd_urls == ("http://a:2379", "http://b:2379")
    assert (settings.gc_s, settings.heartbeat_interval_s, settings.gen_binlog_interval_s) == (3 * DAY_S, 5.0, 7.0)
    assert (settings.sync_log, settings.slow_write_threshold_s) == (False, 0.5)
    assert settings.stop_write_at_available_space == 20 << 30
    assert (settings.tls.ca, settings.tls.cert, settings.tls.key) == ("/ca.pem", "/cert.pem", "/key.pem")
    assert settings.tls.allowed_cn == ("tidb", "drainer")


def test_without_a_file_the_defaults_are_the_originals() -> None:
    # S0-73
    settings = config()
    assert settings == PumpConfig()
    assert (settings.gen_binlog_interval_s, settings.heartbeat_interval_s, settings.gc_s) == (3.0, 2.0, 7 * DAY_S)
    assert (settings.addr, settings.stop_write_at_available_space) == ("127.0.0.1:8250", 10 << 30)


def test_flags_override_variables_and_variables_override_the_file(file: Path) -> None:
    environment = {"PUMP_NODE_ID": "env", "PUMP_HEARTBEAT_INTERVAL": "9", "PUMP_PD_URLS": "http://env:1"}
    settings = config("-config", str(file), "-node-id", "flag", environment=environment)
    assert (settings.node_id, settings.heartbeat_interval_s, settings.pd_urls) == ("flag", 9.0, ("http://env:1",))
    assert settings.addr == "127.0.0.1:8260"


@pytest.mark.parametrize(
    "words", [("-pd-urls=http://x:1", "-L", "warn"), ("--pd-urls", "http://x:1", "--log-level", "warn")]
)
def test_flags_are_written_as_the_original_or_with_two_dashes(words: tuple[str, ...]) -> None:
    settings = read_settings(parsed(*words), {})
    assert (settings.pd_urls, settings.log_level) == (("http://x:1",), "warn")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('adr = "x"', "unknown key `adr`.*did you mean `addr`"),
        ("[storage]\nsync-lgo = true", "unknown key `storage.sync-lgo`.*did you mean `sync-log`"),
        ("[storage.kv]\nfoo = 1", r"unknown key `storage\.kv\.foo`"),
        ("heartbeat-interval = 0", "heartbeat-interval"),
        ('gc = "soon"', "gc is not a duration"),
        ('log-level = "loud"', "log-level"),
        ("addr = ", "not valid TOML"),
        ('[security]\nssl-cert = "c"', "TLS needs ssl-cert and ssl-key"),
        ('addr = "0.0.0.0:8250"', "needs advertise-addr"),
    ],
)
def test_a_bad_file_is_one_clear_error(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        config("--config", str(path))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot be read.*nowhere\.toml"):
        config("--config", str(tmp_path / "nowhere.toml"))


def test_settings_without_effect_are_logged(file: Path) -> None:
    ignored = find_ignored_keys(read_settings(parsed("--config", str(file), "--metrics-addr", "gateway:9091"), {}))
    assert set(ignored) == {
        "metrics-addr",
        "storage.kv_chan_cap",
        "storage.kv.block-cache-capacity",
        "storage.kv.compaction-L0-trigger",
        "storage.kv.write-L0-pause-trigger",
    }
    assert "read /metrics" in ignored["metrics-addr"]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [(7, 7 * DAY_S), ("0.5", DAY_S / 2), ("8h", 28800), ("1h30m", 5400), ("0", 0), ("2d", 2 * DAY_S)],
)
def test_gc_is_days_or_a_duration(text: str | int, seconds: float) -> None:
    assert parse_gc(text) == seconds


def test_labels_and_weights_are_read(tmp_path: Path) -> None:
    path = tmp_path / "pump.toml"
    path.write_text('[label]\nzone = "a"\n[score]\nload = 0\n')
    settings = config("--config", str(path))
    assert (settings.label, settings.score_weights.load) == ({"zone": "a"}, 0.0)
    assert config("--label", "zone=b,rack=1").label == {"zone": "b", "rack": "1"}


def test_accepted_damage_is_given_by_position() -> None:
    positions = config("--accept-damage", "000012.vlog@4711,000003.vlog@0").accepted_damage
    assert positions == {Pointer(12, 4711), Pointer(3, 0)}
    with pytest.raises(ConfigError, match=r"write 000012\.vlog@4711"):
        config("--accept-damage", "12")


def test_the_effective_settings_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    # S0-73
    assert PumpCommand().run(parsed("--gc", "8h", "config")) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["gc"], shown["gen-binlog-interval"], shown["storage"]["sync-log"]) == ("8h", 3.0, True)


def test_a_pump_raises_its_limit_of_open_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))
    try:
        raise_file_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(
    ("text", "size"), [("10 gib", 10 << 30), ("500 MB", 500_000_000), ("1.5kib", 1536), ("7", 7), ("2mib", 2 << 20)]
)
def test_sizes_are_read_as_the_original_reads_them(text: str, size: int) -> None:
    assert parse_size(text) == size


def test_bad_settings_are_named() -> None:
    for bad in ({"addr": "nowhere"}, {"addr": "0.0.0.0:8250"}, {"pd_urls": ()}, {"gen_binlog_interval_s": 0.0}):
        with pytest.raises(ConfigError):
            PumpConfig(**bad)
    with pytest.raises(BinlakeError, match="not a size"):
        parse_size("ten")
