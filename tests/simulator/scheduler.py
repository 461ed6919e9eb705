"""Decides which thread runs next, and when: one real thread, one random number generator, virtual time.

Each thread of the product is a greenlet. At every call that could block, or before which another thread could run, the
scheduler draws which one runs next; if none can, time jumps to the next timer. So a seed decides every interleaving.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any

from greenlet import GreenletExit, getcurrent, greenlet

EPOCH_S = 1_790_000_000.0
_SWITCH = 0.1  # how often another thread runs first although the lock is free


class Deadlock(AssertionError):
    """No thread can run, and no timer is set."""


class TooLong(AssertionError):
    """The run took more steps than any valid run."""


class Process:
    """A unit that is killed at once: its threads never run again. `on_death`: called in order when it dies."""

    def __init__(self, name: str, machine: Any = None) -> None:
        self.name = name
        self.machine = machine
        self.dead = False
        self.why = ""
        self.on_death: list[Callable[[], None]] = []

    def kill(self, why: str) -> None:
        """Kill it now; idempotent."""
        if not self.dead:
            self.dead, self.why = True, why
            for tell in self.on_death:
                tell()


class Task:
    """One virtual thread."""

    def __init__(self, body: Callable[[], None], process: Process | None, name: str, hub: greenlet) -> None:
        self.green = greenlet(body, hub)
        self.process = process
        self.name = name
        self.done = False
        self.turn = 0  # counts waits, so that a late timer does not wake a newer wait

    @property
    def dead(self) -> bool:
        """Whether its process is dead."""
        return self.process is not None and self.process.dead


class Scheduler:
    """Runs tasks until `over`. `after_step` is called after each step, `uncaught(task, error)` when a thread dies."""

    def __init__(self, random: Random, most_steps: int = 2_000_000) -> None:
        self.random = random
        self.now = EPOCH_S
        self.steps = 0
        self.over = False
        self.after_step: Callable[[], None] = lambda: None
        self.uncaught: Callable[[Task, BaseException], None] = _raise
        self._most_steps = most_steps
        self._hub = getcurrent()
        self._ready: list[Task] = []
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._tasks: list[Task] = []
        self.current: Task | None = None

    def spawn(self, work: Callable[[], object], name: str, process: Process | None = None) -> Task:
        """Run `work` on a new thread."""

        def body() -> None:
            try:
                work()
            except GreenletExit:
                raise
            except BaseException as error:  # noqa: BLE001 - handed to who decides what a thread's death means
                if not self.over:
                    self.uncaught(task, error)
            finally:
                task.done = True

        task = Task(body, process, name, self._hub)
        self._tasks.append(task)
        self._ready.append(task)
        return task

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        """Call `action` after `delay_s`; it must not block."""
        heapq.heappush(self._timers, (self.now + delay_s, next(self._numbers), action))

    def run(self, until: Callable[[], bool]) -> None:
        """Run until `until()` returns True. Raises Deadlock, TooLong, and the errors of the checks."""
        while not until():
            if self._ready:
                self._step(self._draw())
            elif self._timers:
                when, _, action = heapq.heappop(self._timers)
                self.now = max(self.now, when)
                action()
            else:
                raise Deadlock("no thread can run")

    def pause(self) -> None:
        """Let other threads run first."""
        task = self.current
        if task is not None:
            self._ready.append(task)
            self._leave(task)

    def maybe_pause(self) -> None:
        """Now and then let other threads run first."""
        if self.current is not None and self.random.random() < _SWITCH:
            self.pause()

    def wait(self, timeout_s: float | None = None) -> None:
        """Sleep until `wake`, or for `timeout_s`."""
        task = self.current
        assert task is not None, "only a simulated thread may wait"
        task.turn += 1
        if timeout_s is not None:
            turn = task.turn
            self.after(max(0.0, timeout_s), lambda: self.wake(task, turn))
        self._leave(task)

    def wake(self, task: Task, turn: int) -> None:
        """End wait number `turn` of `task`, if it is still in that wait."""
        if task.turn == turn and not task.done:
            task.turn += 1
            self._ready.append(task)

    def sleep(self, seconds: float) -> None:
        """Let virtual time pass."""
        if self.current is not None:
            self.wait(seconds)

    def close(self) -> None:
        """End all threads; what they do while ending has no effect."""
        self.over = True
        for task in self._tasks:
            while not task.done and task.green:
                task.green.throw(GreenletExit)
                task.done = True
        self._tasks.clear()

    def _draw(self) -> Task:
        ready = self._ready
        at = int(self.random.random() * len(ready))
        ready[at], ready[-1] = ready[-1], ready[at]
        return ready.pop()

    def _step(self, task: Task) -> None:
        if task.done or task.dead:
            return
        self.steps += 1
        if self.steps > self._most_steps:
            raise TooLong(f"{self.steps} steps at {self.now - EPOCH_S:.1f} s, {task.name} is next")
        self.current = task
        try:
            task.green.switch()
        finally:
            self.current = None
        self.after_step()

    def _leave(self, task: Task) -> None:
        if self.over:
            raise GreenletExit
        self._hub.switch()
        assert self.current is task


def _raise(task: Task, error: BaseException) -> None:
    del task
    raise error


class Waiters:
    """Threads that wait for something, in order of arrival."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._waiting: deque[tuple[Task, int]] = deque()

    def wait(self, timeout_s: float | None = None) -> None:
        """Sleep until woken, or for `timeout_s`."""
        task = self._scheduler.current
        assert task is not None, "only a simulated thread may wait"
        self._waiting.append((task, task.turn + 1))
        self._scheduler.wait(timeout_s)

    def wake(self, count: int = 1 << 60) -> None:
        """Wake the first `count` that still wait."""
        while self._waiting and count:
            task, turn = self._waiting.popleft()
            if task.turn == turn and not task.dead:
                self._scheduler.wake(task, turn)
                count -= 1
