"""The text page: names unchanged, numbers as Go writes them, cumulative buckets."""

from __future__ import annotations

import threading

import pytest

from binlake.pump_service.monitoring import Counter, Histogram, Reading, compute_exponential_bounds, render_page
from binlake.pump_service.pump.membership import Usage, Weights, compute_score


def lines(*instruments: Counter | Histogram | Reading) -> list[str]:
    return render_page(instruments).decode().splitlines()


def test_counters_keep_their_names_and_escape_their_labels() -> None:
    plain, labelled = Counter("a_count", "text"), Counter("b_count", "text", ("id",))
    labelled.add('x"\\\n')
    labelled.add("y", amount=2)
    assert lines(labelled, plain) == [
        "# HELP a_count text",
        "# TYPE a_count counter",
        "a_count 0",
        "# HELP b_count text",
        "# TYPE b_count counter",
        'b_count{id="x\\"\\\\\\n"} 1',
        'b_count{id="y"} 2',
    ]


def test_buckets_are_cumulative_and_labels_are_sorted() -> None:
    one = Histogram("h", "text", ("method", "label"), compute_exponential_bounds(1, 2, 3))
    for value in (0.5, 1.0, 3.0, 99.0):
        one.get_series("Write", "succ").observe(value)
    assert lines(one)[2:] == [
        'h_bucket{label="succ",method="Write",le="1"} 2',
        'h_bucket{label="succ",method="Write",le="2"} 2',
        'h_bucket{label="succ",method="Write",le="4"} 3',
        'h_bucket{label="succ",method="Write",le="+Inf"} 4',
        'h_sum{label="succ",method="Write"} 103.5',
        'h_count{label="succ",method="Write"} 4',
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (5e-05, "5e-05"),
        (0.0001, "0.0001"),
        (0.001, "0.001"),
        (6.5536, "6.5536"),
        (524288, "524288"),
        (1048576, "1.048576e+06"),
        (2.68435456e08, "2.68435456e+08"),
        (1.794645537703e12, "1.794645537703e+12"),
        (1e6, "1e+06"),
        (-2.5, "-2.5"),
        (300, "300"),
    ],
)
def test_numbers_are_written_as_go_writes_them(value: float, text: str) -> None:
    assert lines(Reading("r", "text", lambda: value))[-1] == f"r {text}"


def test_counts_of_concurrent_threads_are_complete() -> None:
    counter, histogram = Counter("c", "text"), Histogram("h", "text", ("l",), [1.0])

    def work() -> None:
        for _ in range(2000):
            counter.add()
            histogram.get_series("x").observe(0.5)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert lines(counter)[-1] == "c 8000"
    assert lines(histogram)[-1] == 'h_count{l="x"} 8000'


def test_the_score_falls_with_load_disk_and_stored_data() -> None:
    # S0-31
    free = Usage(0.1, 0.1, 0.0)
    assert compute_score(free, Weights()) > compute_score(Usage(0.1, 0.9, 0.0), Weights())
    assert compute_score(free, Weights()) > compute_score(Usage(0.9, 0.1, 0.0), Weights())
    assert compute_score(free, Weights()) > compute_score(Usage(0.1, 0.1, 0.8), Weights())
    assert compute_score(Usage(5.0, 1.0, 1.0), Weights()) == 1, "a score of 0 would mean: none"
    assert compute_score(Usage(0.0, 0.0, 0.0), Weights()) == 100


def test_weights_determine_the_influence_of_each_input() -> None:
    assert compute_score(Usage(1.0, 0.0, 0.0), Weights(load=0)) == 100
    assert compute_score(Usage(0.0, 0.5, 0.0), Weights(load=0, stored=0)) == 50
    assert compute_score(Usage(0.0, 0.5, 0.0), Weights(0, 0, 0)) == 100
