"""Work in a process of its own that a test can kill or stop: it begins with one thread and none of the test's locks.

Python's fork server, which has imported the modules and runs no other thread, forks it. A fork of the test process
would begin with every lock that another thread held at that moment, and could wait for one for ever.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Callable
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from unittest import mock

from binlake.errors import BinlakeError
from deploy.local.process import ONE_THREAD

_SERVER = multiprocessing.get_context("forkserver")
_MODULES = ["support.windows", "support.reparation"]
_children: dict[int, BaseProcess] = {}
_DONE, _REFUSED, _FAILED = 0, 1, 3


def start_child(work: Callable[..., object], *arguments: object) -> int:
    """Call `work`, a function of a module that others can import; the child's pid.

    It exits with 0, with 1 after a BinlakeError, else with 3.
    """
    if "deploy.mutation.plugin" in sys.modules:
        # What is changed is changed in this process alone, which is a fork itself.
        return _fork(work, *arguments)
    _SERVER.set_forkserver_preload(_MODULES)
    with mock.patch.dict(os.environ, {**ONE_THREAD, "PYTHONPATH": os.pathsep.join(sys.path)}):
        forkserver.ensure_running()
    child = _SERVER.Process(target=_call, args=(work, *arguments))
    child.start()
    assert child.pid is not None
    _children[child.pid] = child
    return child.pid


def ended(pid: int) -> int:
    """Wait for a child: its exit code, or minus the signal that ended it."""
    child = _children.pop(pid, None)
    if child is None:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    child.join()
    assert child.exitcode is not None
    return child.exitcode


def end_children() -> None:
    """Kill what a failed test left, stopped processes too."""
    for pid in list(_children):
        os.kill(pid, signal.SIGKILL)
        ended(pid)


def _fork(work: Callable[..., object], *arguments: object) -> int:
    pid = os.fork()
    if not pid:
        # Garbage of native libraries (a gRPC channel) waits for threads that only the parent has.
        gc.freeze()
        _call(work, *arguments)
    return pid


def _call(work: Callable[..., object], *arguments: object) -> None:
    """It never returns: threads that a stopped run left are not waited for."""
    code = _FAILED
    try:
        work(*arguments)
        code = _DONE
    except BinlakeError:
        code = _REFUSED
    except BaseException:  # noqa: BLE001 - the process ends here, whatever it was
        traceback.print_exc()
    finally:
        os._exit(code)
