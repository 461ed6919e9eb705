"""Transactions read from the value log, in columns: complete ones and fakes in ascending commit_ts.

A payload is held as two pieces, from its commit and from its prewrite, until a caller wants it joined.
"""

from __future__ import annotations

import operator

import numpy as np

from binlake.pump_service.pump.ranges import Ints
from binlake.pump_service.pump.stored_transaction import StoredTransaction

Transaction = tuple[int, int, bytes]
"""(start_ts, commit_ts, payload: the complete C, or a fake as stored)."""


class TransactionBatch:
    """Transactions in ascending commit_ts; new ones are added at the end.

    `large`: the only transaction of the batch, if it is sent from the value log; then the batch is not empty.
    """

    def __init__(self) -> None:
        self.large: StoredTransaction | None = None
        self._starts: list[Ints] = []
        self._commits: list[Ints] = []
        self._pieces: list[bytes] = []

    def __len__(self) -> int:
        return len(self._pieces) >> 1 if self.large is None else 1

    def add(self, start_ts: int, commit_ts: int, payload: bytes) -> None:
        """Add a transaction."""
        self.extend(np.array([start_ts], np.int64), np.array([commit_ts], np.int64), [payload, b""])

    def extend(self, start_ts: Ints, commit_ts: Ints, pieces: list[bytes]) -> None:
        """Add several transactions; `pieces`: two for each."""
        self._starts.append(start_ts)
        self._commits.append(commit_ts)
        self._pieces += pieces

    def select_after(self, ts: int) -> TransactionBatch:
        """The transactions with a commit_ts above `ts`."""
        first = int(np.searchsorted(self.commit_ts, ts, side="right"))
        return self.select_range(first, len(self))

    def select_range(self, first: int, last: int) -> TransactionBatch:
        """The transactions from index `first` to `last` - 1."""
        some = TransactionBatch()
        some.extend(self.start_ts[first:last], self.commit_ts[first:last], self._pieces[2 * first : 2 * last])
        return some

    @property
    def start_ts(self) -> Ints:
        """The start_ts of each transaction."""
        return _concatenate(self._starts)

    @property
    def commit_ts(self) -> Ints:
        """The commit_ts of each transaction."""
        return _concatenate(self._commits)

    @property
    def sizes(self) -> Ints:
        """Bytes of each payload."""
        lengths = np.fromiter(map(len, self._pieces), np.int64, len(self._pieces))
        return lengths[::2] + lengths[1::2]

    @property
    def pieces(self) -> list[bytes]:
        """The pieces of all payloads, in order."""
        return self._pieces

    def list_transactions(self) -> list[Transaction]:
        """The transactions as tuples, payloads joined."""
        payloads = map(operator.add, self._pieces[::2], self._pieces[1::2])
        return list(zip(self.start_ts.tolist(), self.commit_ts.tolist(), payloads, strict=True))


def _concatenate(parts: list[Ints]) -> Ints:
    if len(parts) > 1:
        parts[:] = [np.concatenate(parts)]
    return parts[0] if parts else np.empty(0, np.int64)
