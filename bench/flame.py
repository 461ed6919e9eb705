"""Profiles the CPU of a window's stages: py-spy samples the process, including native frames. Each stage gets a flame
graph (STAGE.svg), its stacks (STAGE.folded, a line per stack with its number of samples) and a list of its top frames.

A stack belongs to the stage whose module occurs in it. Stacks of threads that a stage started contain no such module;
they are collected as `threads`. Waiting threads and the benchmark's own meter are left out. py-spy does not see threads
that are not Python's (those of Arrow and delta-rs), so a stage uses more CPU than its samples show.
"""

from __future__ import annotations

import html
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

SAMPLER = "py-spy"
RATE = 200
FIRST_FRAMES = 3
_STAGE = re.compile(r"run \(.*?spark_jobs/stages/(\w+)\.py")
_PLACE = re.compile(r" \((.*?)(:\d+)?\)$")
# py-spy reports a thread as busy if it has just begun to wait, or was woken but has not been scheduled yet.
_WAITS = re.compile(
    r"^(syscall|poll|epoll_wait|select|recv|accept4?|pthread_cond_\w+|PyThread_acquire_lock_timed) \(lib[cp]"
)
_ADDRESS = re.compile(r"^0x[0-9a-f]+ ")
_WIDTH, _HEIGHT = 1200, 17
Stacks = Counter[tuple[str, ...]]


@contextmanager
def sample_stacks(folder: str | bool) -> Iterator[None]:
    """Sample this process into `folder` during the body; do nothing without a folder.

    Raises SystemExit if py-spy is missing or not permitted to trace this process.
    """
    if not folder:
        yield
        return
    out = Path(str(folder))
    out.mkdir(parents=True, exist_ok=True)
    raw = out / "all.folded"
    words = ["record", "--pid", str(os.getpid()), "--rate", str(RATE), "--native", "--threads", "--format", "raw"]
    sampler = subprocess.Popen([_find_program(), *words, "--output", str(raw)], stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True)  # fmt: skip
    assert sampler.stdout is not None
    first = sampler.stdout.readline()
    if "Sampling" not in first:
        raise SystemExit(f"py-spy cannot sample this process: {first}{sampler.stdout.read()} (it needs ptrace: run as"
                         f" root, or set kernel.yama.ptrace_scope = 0)")  # fmt: skip
    try:
        yield
    finally:
        sampler.send_signal(signal.SIGINT)
        sampler.communicate()
    for stage, stacks in split_by_stage(raw.read_text(encoding="utf-8")).items():
        text = "".join(f"{';'.join(stack)} {count}\n" for stack, count in stacks.items())
        (out / f"{stage}.folded").write_text(text, encoding="utf-8")
        (out / f"{stage}.svg").write_text(draw_picture(stage, stacks), encoding="utf-8")
    (out / "first.md").write_text(format_table(out), encoding="utf-8")


def _find_program() -> str:
    path = shutil.which(SAMPLER, path=str(Path(sys.executable).parent))
    if path is None:
        raise SystemExit("py-spy is not installed next to this Python: run `make setup`")
    return path


def split_by_stage(text: str) -> dict[str, Stacks]:
    """Parse py-spy's `raw` format into stacks by stage, from the stage's frame up, without paths of this machine."""
    by_stage: dict[str, Stacks] = defaultdict(Counter)
    for line in text.splitlines():
        words, _, count = line.rpartition(" ")
        frames = words.split(";")
        while _ADDRESS.match(frames[-1]):
            frames.pop()
        if _WAITS.match(frames[-1]) or any(frame.startswith("Meter.") for frame in frames):
            continue
        stages = [(depth, match[1]) for depth, frame in enumerate(frames) if (match := _STAGE.match(frame))]
        depth, stage = stages[-1] if stages else (0, "threads")
        stack = tuple(_shorten_frame(frame) for frame in frames[depth:] if not _ADDRESS.match(frame))
        by_stage[stage][stack] += int(count)
    return dict(by_stage)


def _shorten_frame(frame: str) -> str:
    """Remove the number of a thread or the line number of a function, so that such stacks are counted as one."""
    if frame.startswith("thread ("):
        return "thread " + re.sub(r"[\d_-]+$", "", frame.partition(": ")[2])
    return _PLACE.sub(lambda match: f" ({_shorten(match[1])})", frame)


def _shorten(place: str) -> str:
    """Shorten a path: relative to the checkout or to site-packages; of a native library only its name."""
    return re.sub(r"\.cpython[^/]*|\.abi3|\.so[.\d]*", "", place.rpartition("site-packages/")[2])


def list_top_frames(stacks: Stacks) -> list[tuple[str, float]]:
    """Return the top frames of Binlake's code, each with the native frame that takes most of its time, and shares."""
    total, own, leaves = sum(stacks.values()), Counter[str](), defaultdict[str, Counter[str]](Counter)
    for stack, count in stacks.items():
        ours = next((frame for frame in reversed(stack) if is_ours(frame)), stack[0])
        own[ours] += count
        leaves[ours][stack[-1]] += count
    return [(_format_pair(frame, leaves[frame].most_common(1)[0][0]), count / total) for frame, count in
            own.most_common(FIRST_FRAMES)]  # fmt: skip


def _format_pair(frame: str, leaf: str) -> str:
    return frame if frame == leaf else f"{frame} > {_strip_brackets(leaf)}"


def _strip_brackets(frame: str) -> str:
    """Shorten a C++ name: remove all text in brackets and keep the last two parts."""
    name, space, file = frame.rpartition(" (")
    if "::" not in name:
        return frame
    while (shorter := re.sub(r"<[^<>]*>|\([^()]*\)|\{[^{}]*\}", "", name)) != name:
        name = shorter
    return "::".join([part for part in name.split("::") if part][-2:]) + space + file


def is_ours(frame: str) -> bool:
    """True for a function of this checkout."""
    return bool(re.search(r"\((binlake|spark_jobs|pump_service)/", frame))


def format_table(folder: Path) -> str:
    """Return the top frames of each stage of `folder` as a Markdown table."""
    lines = ["| Stage | samples | first frames, share of the stage's samples |", "|---|---|---|"]
    for file in sorted(folder.glob("*.folded"), key=lambda path: path.stat().st_mtime):
        if file.stem == "all":
            continue
        stacks = fold_text(file.read_text(encoding="utf-8"))
        shown = "; ".join(f"`{frame}` {share:.0%}" for frame, share in list_top_frames(stacks))
        lines.append(f"| {file.stem} | {sum(stacks.values())} | {shown} |")
    return "\n".join(lines) + "\n"


def fold_text(text: str) -> Stacks:
    """Parse the text of a STAGE.folded file."""
    stacks: Stacks = Counter()
    for line in text.splitlines():
        words, _, count = line.rpartition(" ")
        stacks[tuple(words.split(";"))] += int(count)
    return stacks


@dataclass
class _Node:
    count: int = 0
    parts: dict[str, _Node] = field(default_factory=dict)


def draw_picture(name: str, stacks: Mapping[tuple[str, ...], int]) -> str:
    """Draw the flame graph as SVG: a frame's width is its number of samples; hovering over it shows its name."""
    root, deepest = _Node(), 1
    for stack, count in stacks.items():
        node, deepest = root, max(deepest, len(stack) + 1)
        node.count += count
        for frame in stack:
            node = node.parts.setdefault(frame, _Node())
            node.count += count
    height = deepest * _HEIGHT
    shapes = "".join(_render_boxes(name, root, 0.0, height - _HEIGHT, _WIDTH / max(root.count, 1)))
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" font-size="11" '
    return f'{head}font-family="monospace">{shapes}</svg>\n'


def _render_boxes(name: str, node: _Node, left: float, top: int, scale: float) -> Iterator[str]:
    width = node.count * scale
    if width < 0.5:
        return
    title = html.escape(f"{name}: {node.count} samples")
    text = html.escape(name[: int(width / 7)]) if width > 21 else ""
    colour = "#f4b36c" if is_ours(name) else "#e8d9c0"
    yield (f'<g><title>{title}</title><rect x="{left:.1f}" y="{top}" width="{width:.1f}" height="{_HEIGHT - 1}"'
           f' fill="{colour}"/><text x="{left + 2:.1f}" y="{top + 12}">{text}</text></g>')  # fmt: skip
    for part, below in sorted(node.parts.items()):
        yield from _render_boxes(part, below, left, top - _HEIGHT, scale)
        left += below.count * scale
