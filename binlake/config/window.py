"""The section `window`: where windows end, when a replication counts as late, and what runs the stages."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from binlake.base.sections.values import Section, TsText


class WindowSection(Section):
    """Limits of a window."""

    max_seconds: int = Field(
        3600,
        ge=1,
        description="greatest length of a window, in seconds of commit_ts; after an empty window, twice its length if"
        " that is more",
    )
    stop_at: tuple[TsText, ...] = Field((), description="commit_ts that no window crosses, ascending")
    blocked_alert_s: int = Field(600, ge=1, description="a run that is blocked for more than this many seconds fails")
    lag_alert_s: int = Field(
        600,
        ge=1,
        description="a lake, target or mirrors more than this many seconds behind the source are shown as `behind`, not"
        " as `running` (docs/operate/pages.md); choose more than the schedule's interval",
    )
    max_bytes: int | None = Field(
        None,
        ge=0,
        description="limit for the bytes of binlogs in a window (at least one transaction); land ends the window"
        " there, and the next window gets the rest. Absent: 33554432 if one task runs all stages of many windows"
        " (layout `fused`, `binlake window run`), else no limit (`stages`: each run processes one window). 0: only"
        " max-seconds is a limit",
    )
    driver_bytes: int = Field(
        64 << 20,
        ge=0,
        le=512 << 20,
        description="with engine `auto`: this process runs the stages of a window of at most this many bytes of"
        " binlogs, Spark those of a larger one, as one window (`make bench-engine` finds where Spark is faster);"
        " 0 = Spark always",
    )
    engine: Literal["auto", "local", "spark"] = Field(
        "auto",
        description="what runs the stages that read rows. `auto`: this process up to `driver-bytes`, Spark above them"
        " (if none is named, this process, in pieces);"
        " `local`: always this process, which then needs no Spark; `spark`: always Spark, also to pull, as when this"
        " process cannot reach the pumps' data ports, and a backlog as one window",
    )

    @property
    def most_local_bytes(self) -> int | None:
        """Bytes of binlogs up to which this process runs the stages of a window; None = always."""
        return {"auto": self.driver_bytes, "local": None, "spark": 0}[self.engine]
