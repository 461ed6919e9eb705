"""Telling somebody: a notifier of any of Airflow's providers, or any callable, named in the configuration.

What is told is imported and given its arguments only when it is called; `env:NAME` in them is read there, so no DAG,
XCom or page holds them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pkgutil import resolve_name
from typing import Any

from airflow.sdk import BaseNotifier

from binlake import tso
from binlake.config import load_replication
from binlake.config.airflow import Notify, NotifyOnLag, NotifyOnSilence
from binlake.errors import ConfigError
from binlake_airflow import assets


class OnFailure:
    """The failure callback of the DAGs of `replication_file`; Airflow calls it in the DAG processor."""

    def __init__(self, replication_file: str) -> None:
        self.replication_file = replication_file

    def __call__(self, context: Mapping[str, Any]) -> None:
        """Tell who `airflow.on-failure` names."""
        tell_failure(self.replication_file, context)


def tell_failure(replication_file: str, context: Mapping[str, Any]) -> None:
    """Tell who `airflow.on-failure` names, if anybody; also the callback of a missed deadline."""
    rule = load_replication(replication_file, secrets=False).airflow.on_failure
    if rule is not None:
        tell(rule, context)


def tell_lag(rule: NotifyOnLag, replication: str, what: str, lag_s: float, context: Mapping[str, Any]) -> bool:
    """Tell that `what` (landing, sql) lags by `lag_s`, as `_tell_at_times`."""
    told = {"replication": replication, "what": what, "lag_seconds": lag_s}
    return lag_s >= rule.seconds and _tell_at_times(rule, f"lag-told-{what}", told, context)


def tell_silence(rule: NotifyOnSilence, replication: str, since: int, until: int, context: Mapping[str, Any]) -> bool:
    """Tell that there is no transaction between these two commit_ts, as `_tell_at_times`."""
    silent_s = (tso.physical(until) - tso.physical(since)) / 1000
    told = {"replication": replication, "what": "silence", "since": str(since), "silent_seconds": silent_s}
    return silent_s >= rule.seconds and _tell_at_times(rule, "silence-told", told, context)


def _tell_at_times(rule: NotifyOnLag, key: str, told: Mapping[str, Any], context: Mapping[str, Any]) -> bool:
    """Tell it, unless that was done within `repeat-s`; whether it was told.

    When that was last is kept in Airflow's state store of the replication's asset.
    """
    store = context["asset_state_store"][assets.of_replication(told["replication"])]
    last = store.get(key)
    if last is not None and time.time() - float(str(last)) < rule.repeat_s:
        return False
    tell(rule, {**context, "binlake": told})
    store.set(key, str(time.time()))
    return True


def tell(rule: Notify, context: Mapping[str, Any]) -> None:
    """Call what `rule` names. Raises ConfigError when it is not there, and whatever it raises."""
    named = _imported(rule.notifier)
    kwargs = {name: _resolved(value) for name, value in rule.kwargs.items()}
    if isinstance(named, type) and issubclass(named, BaseNotifier):
        named(**kwargs)(dict(context))
    else:
        named(context, **kwargs)


def _imported(path: str) -> Any:
    try:
        return resolve_name(path)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"the notifier cannot be imported: {error}",
            where={"notifier": path},
            hint="install its package where Airflow's DAG processor and tasks run",
        ) from error


def _resolved(value: Any) -> Any:
    if not (isinstance(value, str) and value.startswith("env:")):
        return value
    name = value[4:]
    if name not in os.environ:
        raise ConfigError("a notifier's argument names an environment variable that is not set", where={"name": name})
    return os.environ[name]
