"""Regular expressions avoid possessive repeats of groups, which match too little in Python 3.11 up to 3.11.4."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("binlake", "pump_service", "spark_jobs", "plugins", "deploy")


@pytest.mark.parametrize("package", PACKAGES)
def test_no_group_is_repeated_possessively(package: str) -> None:
    # Debian 12 has 3.11.2 (gh-106052); `(?>(...)*)` is equivalent and works in all versions.
    used = [str(file) for file in (ROOT / package).rglob("*.py") if re.search(r"\)[*+]\+", file.read_text())]
    assert used == []
