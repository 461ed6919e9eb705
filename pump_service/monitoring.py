"""What a service shows to those who watch over it: probes, and a page of metrics.

`/healthz` and `/readyz` answer 200 and `ok`, or 503 and the reasons, one a line. A service is healthy unless a restart
is what would help it, so an orchestrator may restart it for a red `/healthz`. It is ready while it can do its work;
what keeps it from that may also be outside of it, where a restart changes nothing.

The metrics are in the Prometheus text format (0.0.4) with names as given: the original's counters lack `_total`. The
usual client library would rename those counters, so dashboards and alert rules written for the original would not work.
Instruments are thread-safe.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from binlake.common.terminal import escape_invisible

HEALTHZ, READYZ = "/healthz", "/readyz"
PROBE_CONTENT_TYPE = "text/plain; charset=utf-8"

FindReasons = Callable[[], Sequence[str]]
"""Finds what is in the way, a text each; empty = nothing."""

METRICS_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Labels = tuple[str, ...]


def find_no_reason() -> Sequence[str]:
    """For a service that is healthy as long as it answers."""
    return ()


@dataclass(frozen=True)
class Probes:
    """The two questions to one service. They may be asked every second and by anybody: they change nothing."""

    find_unhealthy: FindReasons
    find_unready: FindReasons

    def answer(self, path: str) -> tuple[int, str] | None:
        """Status and body for one of the two paths; None for any other path."""
        if path == HEALTHZ:
            return _render(self.find_unhealthy())
        if path == READYZ:
            # What must be restarted cannot work either.
            return _render([*self.find_unhealthy(), *self.find_unready()])
        return None


def _render(reasons: Sequence[str]) -> tuple[int, str]:
    if not reasons:
        return 200, "ok\n"
    return 503, "".join(f"{escape_invisible(reason)}\n" for reason in dict.fromkeys(reasons))


class Counter:
    """Counts by label values; shown as 0 before the first count when it has no labels."""

    kind = "counter"

    def __init__(self, name: str, text: str, labels: Sequence[str] = ()) -> None:
        self.name = name
        self.text = text
        self._labels = tuple(labels)
        self._values: dict[Labels, float] = {} if labels else {(): 0.0}
        self._lock = threading.Lock()

    def add(self, *labels: str, amount: float = 1) -> None:
        """Count `amount` more for these label values."""
        with self._lock:
            self._values[labels] = self._values.get(labels, 0.0) + amount

    def render_samples(self) -> Iterator[str]:
        """The lines of the page."""
        with self._lock:
            values = sorted(self._values.items())
        for labels, value in values:
            yield f"{self.name}{_format_labels(zip(self._labels, labels, strict=True))} {_format_number(value)}"


class Reading:
    """A gauge or counter read when the page is requested: `read()` gives a number, or a number for each label value."""

    def __init__(
        self,
        name: str,
        text: str,
        read: Callable[[], float | Mapping[str, float]],
        label: str = "",
        kind: str = "gauge",
    ) -> None:
        self.name = name
        self.text = text
        self.kind = kind
        self._read = read
        self._label = label

    def render_samples(self) -> Iterator[str]:
        """The lines of the page."""
        reading = self._read()
        values = reading if isinstance(reading, Mapping) else {"": reading}
        for value, number in sorted(values.items()):
            yield f"{self.name}{_format_labels([(self._label, value)] if self._label else [])} {_format_number(number)}"


class HistogramSeries:
    """The observations of one label combination, made by `Histogram.get_series`.

    A caller that observes often stores it.
    """

    __slots__ = ("_buckets", "_counts", "_lock", "_total")

    def __init__(self, buckets: list[float]) -> None:
        self._buckets = buckets
        self._counts = [0] * (len(buckets) + 1)
        self._total = 0.0
        self._lock = threading.Lock()

    def observe(self, value: float) -> None:
        """Count one observation."""
        at = bisect_left(self._buckets, value)
        with self._lock:
            self._counts[at] += 1
            self._total += value

    def observe_all(self, values: Sequence[float]) -> None:
        """Count many at once."""
        buckets = self._buckets
        places = [bisect_left(buckets, value) for value in values]
        with self._lock:
            counts = self._counts
            for at in places:
                counts[at] += 1
            self._total += sum(values)

    def read(self) -> tuple[list[int], float]:
        """Observations of each bucket, not cumulative, and their sum."""
        with self._lock:
            return list(self._counts), self._total


class Histogram:
    """Counts observations by bucket and label values; a label combination is on the page from its first one on."""

    kind = "histogram"

    def __init__(self, name: str, text: str, labels: Sequence[str], buckets: Sequence[float]) -> None:
        self.name = name
        self.text = text
        self._labels = tuple(labels)
        self._buckets = list(buckets)
        self._series: dict[Labels, HistogramSeries] = {}
        self._lock = threading.Lock()

    def get_series(self, *labels: str) -> HistogramSeries:
        """The series of these label values."""
        with self._lock:
            return self._series.setdefault(labels, HistogramSeries(self._buckets))

    def render_samples(self) -> Iterator[str]:
        """The lines of the page: cumulative buckets, sum, count."""
        with self._lock:
            all_series = sorted(self._series.items())
        for labels, series in all_series:
            counts, total = series.read()
            if any(counts):
                yield from self._render_bucket_lines(sorted(zip(self._labels, labels, strict=True)), counts, total)

    def _render_bucket_lines(self, pairs: list[tuple[str, str]], counts: list[int], total: float) -> Iterator[str]:
        seen = 0
        for bound, count in zip([*self._buckets, float("inf")], counts, strict=True):
            seen += count
            yield f"{self.name}_bucket{_format_labels([*pairs, ('le', _format_number(bound))])} {seen}"
        yield f"{self.name}_sum{_format_labels(pairs)} {_format_number(total)}"
        yield f"{self.name}_count{_format_labels(pairs)} {seen}"


Instrument = Counter | Reading | Histogram


def compute_exponential_bounds(start: float, factor: float, count: int) -> list[float]:
    """`count` bucket bounds that start at `start`, each `factor` times the previous one."""
    return [start * factor**n for n in range(count)]


def render_page(instruments: Sequence[Instrument]) -> bytes:
    """The page of these instruments, sorted by name."""
    lines = []
    for one in sorted(instruments, key=lambda one: one.name):
        lines += [f"# HELP {one.name} {one.text}", f"# TYPE {one.name} {one.kind}", *one.render_samples()]
    return ("\n".join(lines) + "\n").encode()


def _format_labels(pairs: Iterable[tuple[str, str]]) -> str:
    text = ",".join(f'{name}="{_escape(value)}"' for name, value in pairs)
    return f"{{{text}}}" if text else ""


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _format_number(value: float) -> str:
    # Formatted as Go does: a bucket's bound is a label, so its text matters.
    if value == float("inf"):
        return "+Inf"
    number = Decimal(repr(value))
    exponent = number.adjusted() if number else 0
    if -4 <= exponent < 6:
        return f"{number.normalize():f}"
    digits = "".join(map(str, number.normalize().as_tuple().digits))
    point = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{'-' if number < 0 else ''}{digits[0]}{point}e{exponent:+03d}"
