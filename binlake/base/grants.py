"""Reads the answer of SHOW GRANTS."""

from __future__ import annotations

import re


def parse_privileges(grant: str) -> list[str]:
    """The privileges of one GRANT, in upper case and without columns; empty for a role."""
    words = re.match(r"GRANT (.+?) ON ", grant)
    return [re.sub(r"\s*\(.*", "", privilege).strip().upper() for privilege in words[1].split(",")] if words else []
