"""Protects a snapshot from TiKV's GC while it is read: a service safe point at PD, renewed while the context is open.

After a crash the safe point stays for at most `HOLD_S`. A placement driver without TiKV has no GC.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import structlog

from binlake.cluster.source.regions import RegionClient
from binlake.errors import LostRange, SourceUnavailable
from binlake.rpc import Tls

if TYPE_CHECKING:
    from binlake.config.servers import SourceSection

log = structlog.get_logger(__name__)

HOLD_S = 600
_RENEW_S = HOLD_S / 4


@contextmanager
def hold_gc(source: SourceSection, service: str, ts: int, renew_s: float = _RENEW_S) -> Iterator[None]:
    """Keep rows as of `ts` readable inside the context. Raises LostRange if GC has passed `ts`, SourceUnavailable."""
    tls = Tls.of(*source.security.list_files())
    with closing(RegionClient(list(source.pd_urls), source.timeout_s, tls)) as regions:
        if not regions.has_tikv():
            log.info("gc_not_held", reason="this placement driver has no TiKV", commit_ts=str(ts))
            yield
            return
        _set_safe_point(regions, service, ts)
        is_done = threading.Event()
        renewing = threading.Thread(target=_renew, args=(regions, service, ts, renew_s, is_done), name="gc-hold")
        renewing.start()
        try:
            yield
        finally:
            is_done.set()
            renewing.join()
            _release(regions, service)


def _set_safe_point(regions: RegionClient, service: str, ts: int) -> None:
    least = regions.hold_gc(service, ts, HOLD_S)
    if least > ts:
        raise LostRange(
            "TiKV's GC has passed the snapshot: rows of that time may have been removed",
            where={"commit_ts": ts, "safe_point": least},
            hint="raise tidb_gc_life_time; start the load again with a new lake folder and a current snapshot",
        )


def _renew(regions: RegionClient, service: str, ts: int, renew_s: float, is_done: threading.Event) -> None:
    while not is_done.wait(renew_s):
        try:
            _set_safe_point(regions, service, ts)
        except (SourceUnavailable, LostRange) as error:
            # The safe point holds for some more minutes. If GC passes it after all, TiDB refuses the next read.
            log.warning("gc_hold_not_renewed", commit_ts=str(ts), error=str(error))


def _release(regions: RegionClient, service: str) -> None:
    try:
        regions.hold_gc(service, 0, 0)
    except SourceUnavailable as error:
        log.warning("gc_hold_left_to_expire", seconds=HOLD_S, error=str(error))
