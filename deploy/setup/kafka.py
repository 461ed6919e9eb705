"""Installs Apache Kafka's broker into `.local/kafka`, for tests: the jars listed in `kafka.lock`."""

from __future__ import annotations

import sys
from pathlib import Path

from deploy.setup.common import LOCAL, run_installer
from deploy.setup.jars import Jar, install_jars

ROOT = LOCAL / "kafka"
_LOCK = Path(__file__).with_name("kafka.lock")


def install(root: Path = ROOT) -> Path:
    """Make sure that the jars are installed and undamaged; returns their folder. Raises SetupError."""
    return install_jars("kafka", "Apache Kafka", _read_locked_jars(), root)


def _read_locked_jars() -> list[Jar]:
    lines = _LOCK.read_text(encoding="utf-8").splitlines()
    return [_parse_jar(*line.split()) for line in lines if not line.startswith("#")]


def _parse_jar(name: str, sha256: str) -> Jar:
    group, artifact, version = name.split(":")
    return Jar(group, artifact, version, sha256)


if __name__ == "__main__":
    sys.exit(run_installer("kafka", lambda: str(install())))
