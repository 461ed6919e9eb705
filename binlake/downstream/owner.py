"""Who holds a lease: a text that tells another process on the same machine whether the holder still lives."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass

from binlake.processes import start_of


@dataclass(frozen=True)
class Owner:
    """A process: host name, pid, and its start as `start_of` tells it, since pids come again."""

    host: str
    pid: int
    started: int

    @classmethod
    def me(cls) -> Owner:
        """This process."""
        return cls(socket.gethostname(), os.getpid(), start_of(os.getpid()) or 0)

    @classmethod
    def parse(cls, text: str) -> Owner | None:
        """The owner of `str(owner)`; None for a text of another make."""
        parts = text.rsplit(":", 2)
        if len(parts) != 3 or not all(part.isdigit() for part in parts[1:]):
            return None
        return cls(parts[0], int(parts[1]), int(parts[2]))

    def __str__(self) -> str:
        return f"{self.host}:{self.pid}:{self.started}"

    def is_dead(self) -> bool:
        """True when it ran on this host and is no more; False when it lives or cannot be known."""
        return self.host == socket.gethostname() and start_of(self.pid) != self.started
