"""The sorter's watermark equals that of the plain rule and never passes an unmatched P (MISSION S0-49, invariant 2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st
from pump_helpers import plain_rule

from binlake.pump_service.pump.record import Pointer
from binlake.pump_service.pump.sorter import EntryKind, PushOutcome, Sorter, SorterEntry

AT = Pointer(0, 0)


def p(start_ts: int) -> SorterEntry:
    return SorterEntry(EntryKind.PREWRITE, start_ts, 0, AT, b"k")


def c(start_ts: int, commit_ts: int) -> SorterEntry:
    return SorterEntry(EntryKind.COMMIT, start_ts, commit_ts, AT)


def r(start_ts: int) -> SorterEntry:
    return SorterEntry(EntryKind.ROLLBACK, start_ts, 0, AT)


def fake(ts: int) -> SorterEntry:
    return SorterEntry(EntryKind.FAKE, ts, ts, AT)


def fed(*entries: SorterEntry) -> Sorter:
    sorter = Sorter()
    for entry in entries:
        sorter.push(entry)
    return sorter


def test_a_prewrite_blocks_until_its_commit_is_seen() -> None:
    # S0-49
    sorter = fed(p(10), p(20), c(20, 30))
    assert sorter.max_ts == 0
    sorter.push(c(10, 25))
    assert sorter.max_ts == 30
    assert len(sorter) == 0


def test_a_rollback_frees_what_its_prewrite_blocked() -> None:
    sorter = fed(p(10), fake(15), p(20))
    assert (sorter.max_ts, sorter.find_oldest_waiting()) == (0, 10)
    sorter.push(r(10))
    assert (sorter.max_ts, sorter.find_oldest_waiting()) == (15, 20)
    # The R does not raise the watermark itself.
    assert fed(p(10), r(10)).max_ts == 0


def test_doubles_of_a_prewrite_are_matched_together_and_a_double_commit_is_reported() -> None:
    sorter = fed(p(10), p(10), c(10, 12))
    assert (sorter.max_ts, len(sorter)) == (12, 0)
    assert sorter.push(c(10, 12)) is PushOutcome.UNMATCHED


def test_a_commit_ts_fetched_before_the_ack_of_its_prewrite_is_reported() -> None:
    # the client prefetched 12; a fake above it was logged first.
    sorter = fed(fake(15), p(10))
    assert sorter.push(c(10, 12)) is PushOutcome.TOO_EARLY
    assert fed(fake(12), p(10)).push(c(10, 12)) is PushOutcome.TOO_EARLY
    sorter = fed(fake(11), p(10))
    assert sorter.push(c(10, 12)) is PushOutcome.TAKEN


def test_the_handle_is_the_record_that_raised_the_watermark() -> None:
    sorter = Sorter()
    for offset, entry in enumerate([p(1), c(1, 5), p(2), c(2, 4), p(3), fake(9)]):
        sorter.push(SorterEntry(entry.kind, entry.start_ts, entry.commit_ts, Pointer(0, offset)))
    assert (sorter.max_ts, sorter.handle) == (5, Pointer(0, 1))


def test_waiting_prewrites_come_in_log_order() -> None:
    sorter = fed(p(30), p(10), p(20), c(10, 40))
    assert [entry.start_ts for entry in sorter.list_waiting_prewrites()] == [30, 20]
    assert [entry.start_ts for entry in sorter.list_waiting_prewrites(1)] == [30]


def test_the_first_record_of_equal_timestamps_is_the_handle() -> None:
    sorter = Sorter()
    outcomes = [sorter.push(SorterEntry(EntryKind.FAKE, 9, 9, Pointer(0, offset))) for offset in range(3)]
    assert outcomes == [PushOutcome.TAKEN] * 3
    assert (sorter.max_ts, sorter.handle) == (9, Pointer(0, 0))
    # This also holds when a prewrite between them ends.
    sorter = Sorter()
    for offset, entry in enumerate([fake(9), p(5), fake(9), r(5)]):
        sorter.push(SorterEntry(entry.kind, entry.start_ts, entry.commit_ts, Pointer(0, offset)))
    assert (sorter.max_ts, sorter.handle, len(sorter)) == (9, Pointer(0, 0), 0)
    # An empty cluster begins at 0, and its least commit_ts is above that.
    assert fed(p(1)).push(c(1, 1)) is PushOutcome.TAKEN
    assert Sorter().push(p(1)) is PushOutcome.TAKEN


def test_a_file_is_needed_up_to_the_greatest_commit_of_its_prewrites_until_it_is_removed() -> None:
    sorter = Sorter()
    ends = [(1, 3, 20), (2, 3, 10), (3, 4, 1), (4, 3, 20)]
    for start_ts, fid, commit_ts in ends:
        sorter.push(SorterEntry(EntryKind.PREWRITE, start_ts, 0, Pointer(fid, start_ts), b"k"))
        assert sorter.list_blocking_files() == {fid}
        sorter.push(c(start_ts, commit_ts))
    assert [sorter.look_up_needed_ts(fid) for fid in (3, 4, 5)] == [20, 1, 0]
    assert sorter.list_blocking_files() == set()
    assert [Sorter.load(sorter.dump()).look_up_needed_ts(fid) for fid in (3, 4, 5)] == [20, 1, 0]
    sorter.forget(3)
    sorter.forget(5)
    assert [sorter.look_up_needed_ts(fid) for fid in (3, 4, 5)] == [0, 1, 0]


def doubting(*entries: SorterEntry) -> Sorter:
    """A sorter that does not trust an R."""
    sorter = Sorter(trust_rollbacks=False)
    for entry in entries:
        sorter.push(entry)
    return sorter


def test_reported_rollbacks_are_listed_in_the_order_of_the_reports_until_they_are_proved() -> None:
    sorter = doubting(p(10), p(20), p(30), r(20), r(10))
    assert [entry.start_ts for entry in sorter.list_doubted_prewrites()] == [20, 10]
    assert [entry.start_ts for entry in sorter.list_doubted_prewrites(1)] == [20]
    assert sorter.find_oldest_waiting() == 10
    assert sorter.push(r(30)) is PushOutcome.DOUBTED
    assert sorter.push(r(40)) is PushOutcome.UNMATCHED
    for start_ts in (10, 20, 30):
        assert sorter.push(SorterEntry(EntryKind.PROVEN_ROLLBACK, start_ts, 0, AT)) is PushOutcome.TAKEN
    assert (sorter.list_doubted_prewrites(), len(sorter), sorter.find_oldest_waiting()) == ([], 0, 0)


entries = st.lists(
    st.one_of(
        st.builds(p, st.integers(1, 8)),
        st.builds(c, st.integers(1, 8), st.integers(1, 60)),
        st.builds(r, st.integers(1, 8)),
        st.builds(fake, st.integers(1, 60)),
    ),
    max_size=40,
)


@given(entries)
def test_watermark_equals_that_of_the_plain_rule_for_any_log(log: list[SorterEntry]) -> None:
    assert fed(*log).max_ts == plain_rule(log)


def state(sorter: Sorter) -> tuple[object, ...]:
    """The complete observable state of a sorter."""
    return (
        sorter.max_ts,
        sorter.handle,
        len(sorter),
        sorter.find_oldest_waiting(),
        sorter.list_waiting_prewrites(),
        # The dump holds which P have reports, but not the order of the reports: it is log order after a load.
        sorted(sorter.list_doubted_prewrites(), key=lambda entry: entry.start_ts),
        sorter.list_blocking_files(),
        [sorter.look_up_needed_ts(fid) for fid in range(9)],
    )


def with_positions(log: list[SorterEntry]) -> list[SorterEntry]:
    """The entries with their own positions and keys."""
    return [
        SorterEntry(one.kind, one.start_ts, one.commit_ts, Pointer(n % 9, n * 7), b"k" * n if one.key else b"")
        for n, one in enumerate(log)
    ]


@given(entries, entries, st.booleans())
def test_a_sorter_loaded_from_its_dump_continues_unchanged(
    before: list[SorterEntry], after: list[SorterEntry], trust: bool
) -> None:
    log = with_positions([*before, *after])
    one = Sorter(trust_rollbacks=trust)
    for entry in log[: len(before)]:
        one.push(entry)
    other = Sorter.load(one.dump(), trust_rollbacks=trust)
    assert state(other) == state(one)
    for entry in log[len(before) :]:
        assert other.push(entry) is one.push(entry)
        assert state(other) == state(one)


def test_a_reported_rollback_is_in_the_dump() -> None:
    sorter = Sorter.load(doubting(p(10), p(20), r(20)).dump(), trust_rollbacks=False)
    assert [entry.start_ts for entry in sorter.list_doubted_prewrites()] == [20]
    assert (len(sorter), sorter.push(SorterEntry(EntryKind.PROVEN_ROLLBACK, 20, 0, AT))) == (2, PushOutcome.TAKEN)
    assert (len(sorter), sorter.list_doubted_prewrites()) == (1, [])


@given(entries)
def test_loading_a_dump_releases_doubts_if_rollbacks_are_trusted_now(drawn: list[SorterEntry]) -> None:
    # A P that is logged again after its R waits anew; a P that repeats a doubted one is a double of it.
    ended: set[int] = set()
    log = []
    for entry in with_positions(drawn):
        ended |= {entry.start_ts} if entry.kind is EntryKind.ROLLBACK else set()
        if entry.kind is not EntryKind.PREWRITE or entry.start_ts not in ended:
            log.append(entry)
    doubted, trusted = Sorter(trust_rollbacks=False), Sorter()
    for entry in log:
        doubted.push(entry)
        trusted.push(entry)
    released = Sorter.load(doubted.dump())
    assert released.max_ts == trusted.max_ts
    assert (len(released), released.list_doubted_prewrites()) == (len(trusted), [])


@dataclass(frozen=True)
class Transaction:
    """Latencies (in ticks of the one clock) between the steps of a transaction."""

    begin: int
    prewrite: int
    commit: int
    send: int
    commits: bool


transactions = st.lists(
    st.builds(
        Transaction, st.integers(0, 50), st.integers(0, 20), st.integers(0, 20), st.integers(0, 50), st.booleans()
    ),
    max_size=12,
)


def run_cluster(transactions: Sequence[Transaction], prefetch: int) -> list[SorterEntry]:
    """The log of a cluster: one clock, P logged before its commit_ts is fetched (less `prefetch`), fakes in between."""
    events: list[tuple[int, int, SorterEntry]] = []
    for number, txn in enumerate(transactions):
        start = txn.begin * 100 + number
        logged = start + txn.prewrite * 100
        # However early the commit_ts is fetched, the clock gave the start_ts before.
        commit_ts = max(start + 1, logged + txn.commit * 100 + 50 - prefetch)
        events.append((logged, number, p(start)))
        end = c(start, commit_ts) if txn.commits else r(start)
        events.append((logged + txn.commit * 100 + 51 + txn.send * 100, number, end))
    events += [(tick * 100 + 99, -1, fake(tick * 100 + 99)) for tick in range(0, 150, 3)]
    return [entry for _, _, entry in sorted(events, key=lambda event: event[:2])]


@given(transactions)
def test_no_transaction_ever_appears_at_or_below_a_watermark_already_shown(transactions: list[Transaction]) -> None:
    log = run_cluster(transactions, prefetch=0)
    sorter = Sorter()
    for entry in log:
        before = sorter.max_ts
        assert sorter.push(entry) is not PushOutcome.TOO_EARLY
        if entry.kind is EntryKind.COMMIT:
            assert entry.commit_ts > before, "the watermark passed a commit that was still to come"
    ended = {entry.start_ts for entry in log if entry.kind in (EntryKind.COMMIT, EntryKind.ROLLBACK)}
    assert len(sorter) == sum(entry.kind is EntryKind.PREWRITE and entry.start_ts not in ended for entry in log)


@given(transactions, st.integers(100, 3000))
def test_a_prefetching_client_is_detected_if_the_watermark_passed_its_commit(
    transactions: list[Transaction], prefetch: int
) -> None:
    # random delays, and a client that fetches its commit_ts in advance.
    log = run_cluster(transactions, prefetch)
    sorter, caught, passed = Sorter(), set(), set()
    for entry in log:
        before = sorter.max_ts
        outcome = sorter.push(entry)
        if entry.kind is EntryKind.COMMIT and outcome is PushOutcome.TOO_EARLY:
            caught.add(entry.start_ts)
        if entry.kind is EntryKind.COMMIT and entry.commit_ts <= before:
            passed.add(entry.start_ts)
    assert passed <= caught
