"""Writes the `.env` of `docker-compose.yaml`: passwords, and the keys that all parts of one Airflow must share.

Run `python3 -m deploy.docker.secrets_file > .env` once; it needs only the standard library.
"""

from __future__ import annotations

import base64
import secrets

NAMES = (
    "AIRFLOW_FERNET_KEY",
    "AIRFLOW_JWT_SECRET",
    "AIRFLOW_SECRET_KEY",
    "AIRFLOW_ADMIN_PASSWORD",
    "AIRFLOW_DB_PASSWORD",
    "BINLAKE_TARGET_PASSWORD",
)


def build_lines() -> list[str]:
    """A `NAME=value` line with a new value for every secret."""
    values = {name: secrets.token_hex(24) for name in NAMES}
    values["AIRFLOW_FERNET_KEY"] = base64.urlsafe_b64encode(secrets.token_bytes(32)).decode()
    return [f"{name}={value}" for name, value in values.items()]


if __name__ == "__main__":
    print("\n".join(build_lines()))
