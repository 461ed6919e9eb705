"""The tables that bench_end_to_end.py prints."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from target_floor import Floor
from window_process import StageCost, WindowRun


@dataclass(frozen=True)
class Measured:
    """Results of one load. `rows`: row changes; `lake`: bytes that the load added to each table; `load_us`: CPU us to
    write a transaction; `wrong`: differences between the target and the rows written.
    """

    name: str
    description: str
    way: str
    transactions: int
    rows: int
    cold: WindowRun
    cold_rows: int
    warm: WindowRun
    payload_bytes: int
    lake: dict[str, int]
    load_us: float
    floor: Floor
    wrong: list[str]

    @property
    def rate(self) -> float:
        """Rows per second, from plan to checkpoint."""
        return self.rows / self.warm.whole.seconds

    @property
    def busy(self) -> float:
        """Share of all cores that the processes used from plan to checkpoint, 0 to 1."""
        return sum(self.warm.whole.cpu.values()) / (self.warm.whole.seconds * (os.cpu_count() or 1))

    def compute_whole_us(self) -> float:
        """CPU us a row of the process's whole life: its start, its first window, and the load."""
        used = sum(self.cold.whole.cpu.values()) + sum(self.warm.whole.cpu.values())
        return used / (self.cold_rows + self.rows) * 1e6


def print_run(measured: Measured) -> None:
    """Print all results of one load."""
    print(f"== ({measured.name}) {measured.transactions:,} {measured.description}, {measured.rows:,} rows, way"
          f" {measured.way}; load average {os.getloadavg()[0]:.1f} of {os.cpu_count()} CPUs")  # fmt: skip
    _print_part("cold", measured.cold, measured.cold_rows)
    _print_part("warm", measured.warm, measured.rows)
    print(f"  cold and warm together: {measured.compute_whole_us():.1f} CPU us per row")
    floor, whole = measured.floor, measured.warm.whole
    parts = {name: size / measured.payload_bytes for name, size in sorted(measured.lake.items()) if size}
    print(f"  lake: {sum(parts.values()):.2f} bytes per byte of payload ({measured.payload_bytes / 2**20:.0f} MiB):"
          f" {_format_values(parts, '.3f')}")  # fmt: skip
    print(f"  load: written at {measured.load_us:.0f} us of CPU per transaction, pumps included")
    print(f"  floor: {floor.rows:,} rows in {floor.seconds:.2f} s, {floor.rows / floor.seconds:,.0f} rows/s; server"
          f" {floor.server_cpu:.2f} CPU s, client {floor.client_cpu:.2f}; window / floor"
          f" {whole.seconds / floor.seconds:.1f} of wall, {whole.cpu['mariadb'] / max(floor.server_cpu, 0.01):.1f} of"
          f" the server's CPU")  # fmt: skip
    print(f"  target: {'; '.join(measured.wrong) or 'holds every row as it was written'}", flush=True)


def _print_part(name: str, run: WindowRun, rows: int) -> None:
    whole = run.whole
    total = sum(whole.cpu.values())
    print(f"  {name}: {rows:,} rows in {whole.seconds:.2f} s of wall = {rows / whole.seconds:,.0f} rows/s;"
          f" {total:.2f} CPU s = {total / rows * 1e6:.1f} us per row; {run.windows} windows, {run.jobs} Spark jobs,"
          f" {'a JVM' if 'jvm' in run.peak else 'no JVM'}; peak MiB {_format_values(run.peak, '.0f')}; written MiB"
          f" {_format_values(run.written, '.0f')}")  # fmt: skip
    names = [process for process, used in whole.cpu.items() if used >= 0.005]
    print(f"    {'CPU us/row':<14}{'wall s':>8}{'calls':>6}" + "".join(f"{process:>10}" for process in names))
    for stage, cost in [*run.stages.items(), ("all", whole)]:
        print(f"    {stage:<14}{cost.seconds:>8.2f}{cost.calls:>6}" + _format_columns(cost, names, rows))
    if run.overlap:
        print("    (stages ran in parallel: the CPU of a process is counted in each of them)")


def _format_columns(cost: StageCost, names: Sequence[str], rows: int) -> str:
    return "".join(f"{cost.cpu.get(name, 0.0) / rows * 1e6:>10.2f}" for name in names)


def _format_values(values: Mapping[str, float], form: str) -> str:
    return ", ".join(f"{name} {value:{form}}" for name, value in values.items())


def format_summary(measured: Sequence[Measured]) -> str:
    """Return a Markdown table with a row per load, for bench/README.md."""
    heads = ("Load", "rows", "rows/s", "cores busy", "CPU us a row", "pumps", "windows' process", "JVM", "MariaDB",
             "floor rows/s", "wall / floor", "CPU / floor's", "cold CPU s", "cold and warm us", "peak MiB", "jobs",
             "lake bytes a byte")  # fmt: skip
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for load in measured:
        cpu = {name: used / load.rows * 1e6 for name, used in load.warm.whole.cpu.items()}
        pumps = sum(used for name, used in cpu.items() if name.startswith("pump"))
        lines.append(
            f"| ({load.name}) {load.way} | {load.rows:,} | {load.rate:,.0f} | {load.busy:.0%} |"
            f" {sum(cpu.values()):.1f} | {pumps:.1f} |"
            f" {cpu['windows']:.1f} | {cpu['jvm']:.1f} | {cpu['mariadb']:.1f} |"
            f" {load.floor.rows / load.floor.seconds:,.0f} | {load.warm.whole.seconds / load.floor.seconds:.1f} |"
            f" {sum(load.warm.whole.cpu.values()) / (load.floor.server_cpu + load.floor.client_cpu):.1f} |"
            f" {sum(load.cold.whole.cpu.values()):.1f} | {load.compute_whole_us():.1f} |"
            f" {sum(load.warm.peak.values()):.0f} | {load.warm.jobs} |"
            f" {sum(load.lake.values()) / load.payload_bytes:.2f} |"
        )
    return "\n".join(lines)
