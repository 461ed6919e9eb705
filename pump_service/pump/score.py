"""The score that a pump publishes, 1 to 100: higher = more free capacity (S0-31). Equal inputs give equal scores."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Weights:
    """How much each input counts; the unit is arbitrary, only the ratio matters."""

    load: float = 1.0
    disk: float = 1.0
    stored: float = 1.0


@dataclass(frozen=True)
class Usage:
    """Shares from 0 to 1: the machine's load, the used part of its disk, and the part used by this pump's binlogs."""

    load: float
    disk: float
    stored: float


def compute_score(usage: Usage, weights: Weights) -> int:
    """100 for an idle pump on an empty disk; never 0, which means "no score" to a writer."""
    parts = (
        (usage.load, weights.load),
        (usage.disk, weights.disk),
        (usage.stored, weights.stored),
    )
    total = sum(weight for _, weight in parts)
    used = sum(min(1.0, max(0.0, share)) * weight for share, weight in parts) / total if total else 0.0
    return max(1, round(100 * (1 - used)))


def measure_usage(data_dir: Path) -> Usage:
    """The present usage of this machine. Raises OSError."""
    stat = os.statvfs(data_dir)
    capacity = max(1, stat.f_blocks)
    stored = sum(entry.stat().st_blocks * 512 for entry in os.scandir(data_dir / "value"))
    return Usage(
        load=os.getloadavg()[0] / (os.cpu_count() or 1),
        disk=1 - stat.f_bavail / capacity,
        stored=stored / (capacity * stat.f_frsize),
    )
