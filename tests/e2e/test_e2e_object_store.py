"""A lake in an object store: the same rows, target, mirrors and answers as on a local disk, and clear errors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from support.flakyproxy import FlakyProxy
from support.live import LiveSource
from support.mariadb import MariaDb, execute
from support.s3proxy import S3Proxy, count_by_table
from support.workload import integer
from test_e2e_window import expected, run, set_up, some_changes, tables_of

from binlake.audit.audit import Audit
from binlake.errors import Transient
from binlake.lake import controlrows, lease, opentable, store
from binlake.lake.rowhistory import RowVersion
from binlake.lake.windowlog import WindowEvent
from binlake.repair.verify.run import VerifyOptions, verify
from binlake.rules import Rules
from deploy.local.s3 import S3
from spark_jobs.commands.maintain import maintain
from spark_jobs.job.context import StageContext
from spark_jobs.job.runner import run_window

pytestmark = [pytest.mark.mariadb, pytest.mark.e2e]
Make = Callable[..., StageContext]


@pytest.fixture
def make(context: Make, target: dict[str, Any], s3: S3, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Make contexts with a target, mirrors and a lake in the bucket `bucket`."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "any")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "any")

    def make_in(bucket: str, endpoint: str = s3.url) -> StageContext:
        s3.create_bucket(bucket)
        lake = {"path": f"s3a://{bucket}/lakes", "storage": {"endpoint": endpoint}}
        return context(target=target, mirror={"enabled": True}, lake=lake, window={"engine": "local"})

    return make_in


def read_history(ctx: StageContext, key: str) -> list[RowVersion]:
    return Audit(ctx.paths, Rules.of(ctx.replication), ctx.windows).read_row_history("d", "t", [key])


def test_windows_in_an_object_store_equal_the_source_and_can_be_verified_and_maintained(
    source: LiveSource, make: Make, mariadb: MariaDb
) -> None:  # U-06
    set_up(source.workload)
    some_changes(source.workload, 1)
    ctx = make("equal")
    run(ctx, source)
    source.workload.add_column("d", "t", integer("c", default="7"))
    some_changes(source.workload, 2)
    run(ctx, source)
    assert tables_of(source.workload, mariadb) == expected(source.workload)
    row = source.workload.rows["d", "t"][0]
    history = read_history(ctx, row["id"])
    assert history[-1].after is not None
    assert [one.table for one in maintain(ctx)]
    assert read_history(ctx, row["id"]) == history
    assert verify(ctx.replication).equal
    execute(mariadb, f"DELETE FROM d.t WHERE id = {row['id']}")
    differences = verify(ctx.replication, VerifyOptions(fresh=True)).differences
    assert [(one.table, one.kind) for one in differences] == [("t", "missing")]


def test_a_window_of_one_transaction_takes_few_requests(
    source: LiveSource, make: Make, mariadb: MariaDb, s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a process that has seen the lake before, and of a new one after some 60 commits that were not joined."""
    set_up(source.workload)
    some_changes(source.workload, 1)
    with S3Proxy(s3.port) as proxy:
        ctx = make("requests", proxy.url)
        run(ctx, source)

        def count_window(key: int) -> Counter[tuple[str, str, str]]:
            source.workload.begin().insert("d", "t", id=key, u=f"u{key}", v=1).commit()
            source.settle()
            proxy.take_requests()
            run_window(ctx)
            return count_by_table(proxy.take_requests(), f"lakes/{ctx.replication.name}/")

        warm = count_window(1001)
        for number in range(30):
            ctx.windows.record(WindowEvent("verify", number, number + 1, "done"))
        monkeypatch.setattr(opentable, "_tables", {})
        monkeypatch.setattr(controlrows, "_cached", {})
        monkeypatch.setattr(lease, "_released", {})
        cold = count_window(1002)
    assert tables_of(source.workload, mariadb) == expected(source.workload)
    print(f"requests: {warm.total()} warm, {cold.total()} cold")
    print("\n".join(f"{warm[place]:4} {cold[place]:4} {' '.join(place)}" for place in sorted({*warm, *cold})))
    assert warm.total() < 200
    assert cold.total() < 550


@pytest.mark.soak
def test_a_store_that_stops_answering_in_a_window_is_a_clear_error_and_the_next_run_goes_on(
    source: LiveSource, make: Make, mariadb: MariaDb, s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "LEASE_S", 2.0)
    monkeypatch.setattr(lease, "RENEW_S", 0.3)
    monkeypatch.setattr(store, "_RETRIES", {"max_retries": "1", "retry_timeout": "1s"})
    set_up(source.workload)
    some_changes(source.workload, 3)
    with FlakyProxy(s3.port) as proxy:
        ctx = make("cut", proxy.url)
        run(ctx, source)
        some_changes(source.workload, 4)
        source.settle()
        proxy.cut_after(60)
        with pytest.raises(Transient, match=r"store|storage"):
            run_window(ctx)
        proxy.restore()
        run(ctx, source)
    assert tables_of(source.workload, mariadb) == expected(source.workload)
