"""The parts of `threading`, `queue` and `concurrent.futures` that the product uses, on the scheduler."""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from simulator.scheduler import Scheduler, Task, Waiters


class Threading:
    """The parts of `threading`, `queue`, `time` and `concurrent.futures` that the product uses, in this world."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        world = self

        class Lock(_Lock):
            def __init__(self) -> None:
                super().__init__(world, reentrant=False)

        class RLock(_Lock):
            def __init__(self) -> None:
                super().__init__(world, reentrant=True)

        class Condition(_Condition):
            def __init__(self, lock: _Lock | None = None) -> None:
                super().__init__(world, lock or RLock())

        class Event(_Event):
            def __init__(self) -> None:
                super().__init__(world)

        class Thread(_Thread):
            def __init__(self, group: None = None, target: Any = None, name: str = "", args: Iterable[Any] = (),
                         kwargs: Any = None, *, daemon: bool | None = None) -> None:  # fmt: skip
                del group, daemon
                super().__init__(world, target, name, tuple(args), dict(kwargs or {}))

        class SimpleQueue(_Queue):
            def __init__(self) -> None:
                super().__init__(world)

        class Future(_Future):
            def __init__(self) -> None:
                super().__init__(world)

        class Pool(_Pool):
            def __init__(self, max_workers: int = 1, thread_name_prefix: str = "") -> None:
                super().__init__(world, max_workers, thread_name_prefix)

        self.Lock, self.RLock, self.Condition, self.Event, self.Thread = Lock, RLock, Condition, Event, Thread
        self.SimpleQueue, self.Future, self.ThreadPoolExecutor = SimpleQueue, Future, Pool


class _Lock:
    def __init__(self, world: Threading, *, reentrant: bool) -> None:
        self._scheduler = world.scheduler
        self._waiters = Waiters(world.scheduler)
        self._reentrant = reentrant
        self._owner: Task | None = None
        self._depth = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        scheduler, task = self._scheduler, self._scheduler.current
        if self._reentrant and self._depth and self._owner is task:
            self._depth += 1
            return True
        scheduler.maybe_pause()
        until = None if timeout < 0 else scheduler.now + timeout
        while self._depth:
            if not blocking or (until is not None and scheduler.now >= until):
                return False
            self._waiters.wait(None if until is None else until - scheduler.now)
        self._owner, self._depth = task, 1
        return True

    def release(self) -> None:
        self._depth = max(0, self._depth - 1)
        if not self._depth:
            self._owner = None
            self._waiters.wake(1)

    def locked(self) -> bool:
        return self._depth > 0

    def set_aside(self) -> int:
        depth, self._depth, self._owner = self._depth, 0, None
        self._waiters.wake(1)
        return depth

    def take_up(self, depth: int) -> None:
        self.acquire()
        self._depth = depth

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class _Condition:
    def __init__(self, world: Threading, lock: _Lock) -> None:
        self._scheduler = world.scheduler
        self._lock = lock
        self._waiters = Waiters(world.scheduler)
        self.acquire, self.release = lock.acquire, lock.release

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        before = self._scheduler.now
        depth = self._lock.set_aside()
        self._waiters.wait(timeout)
        self._lock.take_up(depth)
        return timeout is None or self._scheduler.now - before < timeout

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        until = None if timeout is None else self._scheduler.now + timeout
        while not (found := predicate()):
            if until is not None and self._scheduler.now >= until:
                break
            self.wait(None if until is None else until - self._scheduler.now)
        return found

    def notify(self, n: int = 1) -> None:
        self._waiters.wake(n)

    def notify_all(self) -> None:
        self._waiters.wake()


class _Event:
    def __init__(self, world: Threading) -> None:
        self._scheduler = world.scheduler
        self._waiters = Waiters(world.scheduler)
        self._set = False

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        self._waiters.wake()

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        if not self._set:
            self._waiters.wait(timeout)
        return self._set


class _Thread:
    def __init__(self, world: Threading, target: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._world = world
        self._work = (target, args, kwargs)
        self._ended = _Event(world)
        self.name = name
        self.ident: int | None = None

    def start(self) -> None:
        scheduler = self._world.scheduler
        process = scheduler.current.process if scheduler.current else None
        self.ident = id(self)
        scheduler.spawn(self._run, self.name, process)

    def _run(self) -> None:
        target, args, kwargs = self._work
        try:
            target(*args, **kwargs)
        finally:
            self._ended.set()

    def join(self, timeout: float | None = None) -> None:
        self._ended.wait(timeout)

    def is_alive(self) -> bool:
        return self.ident is not None and not self._ended.is_set()


class _Queue:
    def __init__(self, world: Threading) -> None:
        self._changed = _Condition(world, _Lock(world, reentrant=False))
        self._items: deque[Any] = deque()

    def put(self, item: Any) -> None:
        with self._changed:
            self._items.append(item)
            self._changed.notify()

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        with self._changed:
            if block:
                self._changed.wait_for(lambda: self._items, timeout)
            return self._next()

    def get_nowait(self) -> Any:
        return self._next()

    def _next(self) -> Any:
        if not self._items:
            raise queue.Empty
        return self._items.popleft()

    def empty(self) -> bool:
        return not self._items

    def qsize(self) -> int:
        return len(self._items)


class _Future:
    def __init__(self, world: Threading) -> None:
        self._ended = _Event(world)
        self._result: Any = None
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[Any], object]] = []

    def set_running_or_notify_cancel(self) -> bool:
        return True

    def set_result(self, result: Any) -> None:
        self._result = result
        self._end()

    def set_exception(self, error: BaseException) -> None:
        self._error = error
        self._end()

    def _end(self) -> None:
        self._ended.set()
        for tell in self._callbacks:
            tell(self)

    def done(self) -> bool:
        return self._ended.is_set()

    def result(self, timeout: float | None = None) -> Any:
        if not self._ended.wait(timeout):
            raise TimeoutError
        if self._error is not None:
            raise self._error
        return self._result

    def exception(self, timeout: float | None = None) -> BaseException | None:
        if not self._ended.wait(timeout):
            raise TimeoutError
        return self._error

    def add_done_callback(self, tell: Callable[[Any], object]) -> None:
        if self.done():
            tell(self)
        else:
            self._callbacks.append(tell)

    def __class_getitem__(cls, _: object) -> Any:
        return cls


class _Pool:
    """A pool with as many threads as there are tasks."""

    def __init__(self, world: Threading, threads: int, name: str) -> None:
        del threads
        self._world = world
        self._name = name

    def submit(self, work: Callable[..., Any], *args: Any) -> Any:
        future = self._world.Future()

        def run() -> None:
            try:
                future.set_result(work(*args))
            except Exception as error:  # noqa: BLE001 - who waits for the future raises it
                future.set_exception(error)

        self._world.Thread(target=run, name=self._name).start()
        return future

    def map(self, work: Callable[..., Any], *items: Iterable[Any]) -> Iterator[Any]:
        futures = [self.submit(work, *one) for one in zip(*items, strict=False)]
        return (future.result() for future in futures)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Nothing to do."""
