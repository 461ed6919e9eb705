"""The holder of a lease: a text from which another process on the same machine sees whether the holder lives."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass

from binlake.base.processes import start_of


@dataclass(frozen=True)
class Owner:
    """A process: host name, pid, and its start by `start_of`, since pids are reused."""

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
        """True when it ran on this host and has ended; False when it lives or cannot be known."""
        return self.host == socket.gethostname() and start_of(self.pid) != self.started
