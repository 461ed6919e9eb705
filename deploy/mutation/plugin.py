"""A pytest run that tries each mutant of one module (`pytest -p deploy.mutation.plugin --mutate=PATH TESTS`).

First all tests run unchanged, to record which functions each test reaches. Then each mutant is put into the loaded
functions of a forked process, which runs the tests that reach it, the quickest first, until one fails. Servers of the
session (`mariadb`) are started once and serve all processes, one after the other.
"""

from __future__ import annotations

import gc
import importlib
import os
import resource
import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from types import CodeType, FrameType, FunctionType

import pytest
from hypothesis import Phase, settings

from deploy.mutation.operators import Mutant, build_mutants, compute_digest
from deploy.mutation.results import Module, Results, list_modules

_TIMES = 5.0
_LEAST_CPU_S = 5
_LEAST_S = 60.0
_WAIT_S = 0.01
_PASSED, _FAILED = 0, 1


def pytest_addoption(parser: pytest.Parser) -> None:
    """The module, and the time limit of a run."""
    parser.addoption("--mutate", metavar="PATH", help="the module whose mutants are tried")
    parser.addoption("--mutate-seconds", type=float, default=float("inf"), help="stop after so many seconds")


@pytest.hookimpl(trylast=True)
def pytest_configure() -> None:
    """Let Hypothesis stop at the first failing example, without shrinking it.

    It tries the same examples in every run: otherwise a mutant killed by chance could survive in the next run.
    """
    profile = settings.get_profile(settings.get_current_profile_name())
    phases = [Phase.explicit, Phase.generate]
    settings.register_profile("mutation", profile, phases=phases, database=None, derandomize=True)
    settings.load_profile("mutation")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool:
    """Run the mutants in place of the plain test run."""
    if session.testsfailed:
        raise session.Interrupted("collection failed")
    module = next(one for one in list_modules(session.config.rootpath) if one.path == session.config.option.mutate)
    # Objects frozen after the collection would not be listed among live objects.
    gc.unfreeze()
    run = _Run(session, module)
    run.run_baseline()
    if session.testsfailed:
        raise session.Interrupted("the tests fail without any change")
    if killer := run.find_killer_without_change():
        raise session.Interrupted(f"without any change, a forked process fails: {killer}")
    run.try_all(time.monotonic() + session.config.option.mutate_seconds)
    if killer := run.find_killer_without_change():
        module.results.unlink()
        raise session.Interrupted(f"after the mutants, a process without any change fails: {killer}")
    return True


class _Run:
    def __init__(self, session: pytest.Session, module: Module) -> None:
        self._session = session
        self._module = module
        self._path = str(module.root / module.path)
        importlib.import_module(module.path.removesuffix(".py").replace("/", "."))
        self._loaded = _find_functions(self._path)
        self._reached: dict[str, set[str]] = defaultdict(set)
        self._seconds: dict[str, float] = {}

    def run_baseline(self) -> None:
        """Run every test and record which functions of the module it calls."""
        for item in self._session.items:
            began = time.process_time()
            with self._trace_calls(item.nodeid):
                _run(item, self._session)
            self._seconds[item.nodeid] = time.process_time() - began
            if self._session.testsfailed:
                return

    def try_all(self, until: float) -> None:
        """Try the mutants that no earlier run has tried and no list explains, until the time is up."""
        source, tests = compute_digest(self._module.text), self._module.tests_digest
        results, spared = Results.read(self._module, source, tests), self._module.explained
        for mutant in build_mutants(self._module.text, self._path):
            if mutant.key in results.killed_by or mutant.key in spared:
                continue
            if time.monotonic() > until:
                return
            code = _find_code(mutant.compile(), mutant.function, mutant.lineno)
            results.killed_by[mutant.key] = self._find_killer(
                self._select_tests(mutant), partial(self._put, mutant, code)
            )
            results.write(self._module)

    def find_killer_without_change(self) -> str:
        """The test that fails in a forked process without a change (one that uses gRPC may wait forever)."""
        return self._find_killer(self._session.items, lambda: None)

    def _find_killer(self, tests: list[pytest.Item], change: Callable[[], None]) -> str:
        seconds = sum(self._seconds[item.nodeid] for item in tests)
        read, write = os.pipe()
        pid = os.fork()
        if not pid:
            os.close(read)
            _try_and_exit(self._session, change, tests, write, _LEAST_CPU_S + int(_TIMES * seconds))
        os.close(write)
        with os.fdopen(read, "rb") as pipe:
            ended = _wait(pid, _LEAST_S + _TIMES * 10 * seconds)
            said = pipe.read().decode()
        # Without a test's name only a signal counts: a process that failed otherwise proves nothing.
        return said or (f"ended with {ended}" if ended < 0 else "")

    def _select_tests(self, mutant: Mutant) -> list[pytest.Item]:
        reached = self._reached[mutant.function]
        # If no test reaches the function in this process (only child programs call it), run all tests.
        tests = [item for item in self._session.items if item.nodeid in reached or not reached]
        return sorted(tests, key=lambda item: self._seconds[item.nodeid])

    def _put(self, mutant: Mutant, code: CodeType) -> None:
        for function in self._loaded[mutant.function, mutant.lineno]:
            # A mutant without `super()` needs no class cell, but a function must keep its number of cells.
            free = code.co_freevars or function.__code__.co_freevars
            function.__code__ = code.replace(co_freevars=free)

    @contextmanager
    def _trace_calls(self, nodeid: str) -> Iterator[None]:
        def trace(frame: FrameType, _event: str, _what: object) -> None:
            if frame.f_code.co_filename == self._path:
                self._reached[frame.f_code.co_qualname.split(".<locals>")[0]].add(nodeid)

        threading.settrace(trace)
        sys.settrace(trace)
        try:
            yield
        finally:
            sys.settrace(None)
            threading.settrace(None)


def _run(item: pytest.Item, session: pytest.Session) -> None:
    """Run one test and tear down all but session fixtures: pytest gets the session in place of the next test."""
    item.config.hook.pytest_runtest_protocol(item=item, nextitem=session)


def _try_and_exit(
    session: pytest.Session, put: Callable[[], None], tests: list[pytest.Item], pipe: int, cpu_s: int
) -> None:
    """In the forked process: apply the change and run the tests; never returns."""
    code = 2
    try:
        os.setpgrp()
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))
        session.config.pluginmanager.unregister(name="terminalreporter")
        failed = _Failed()
        session.config.pluginmanager.register(failed)
        put()
        code = _PASSED
        for item in tests:
            _run(item, session)
            if failed.nodeid:
                os.write(pipe, failed.nodeid.encode())
                code = _FAILED
                break
    finally:
        os._exit(code)


class _Failed:
    """The first test that failed."""

    nodeid = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.nodeid = self.nodeid or report.nodeid


def _wait(pid: int, seconds: float) -> int:
    """The exit code of `pid`, or minus the signal; its process group is killed then, or after `seconds`."""
    limit = time.monotonic() + seconds
    try:
        while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None and time.monotonic() < limit:
            time.sleep(_WAIT_S)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


def _find_functions(path: str) -> dict[tuple[str, int], list[FunctionType]]:
    """The loaded functions of a file, by qualified name and first line."""
    functions = defaultdict(list)
    for one in gc.get_objects():
        if isinstance(one, FunctionType) and one.__code__.co_filename == path:
            functions[one.__code__.co_qualname, one.__code__.co_firstlineno].append(one)
    return functions


def _find_code(module: CodeType, function: str, lineno: int) -> CodeType:
    """The function's code in a compiled module."""
    inside: list[CodeType] = [module]
    while inside:
        code = inside.pop()
        if (code.co_qualname, code.co_firstlineno) == (function, lineno):
            return code
        inside += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    raise LookupError(function)
