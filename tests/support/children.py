"""Work in a child process that a test can kill or stop; it starts with one thread and with none of the test's locks.

Python's fork server, which has imported the modules and runs no other thread, forks the child. A fork of the test
process would inherit every lock that another thread held at that moment, and could wait for one forever.
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
    """Call `work`, an importable module-level function, in a child; return the child's pid.

    The child exits with 0, with 1 after a BinlakeError, else with 3.
    """
    if "deploy.mutation.plugin" in sys.modules:
        # The child is a fork itself, so these changes stay within it.
        return _fork(work, *arguments)
    _SERVER.set_forkserver_preload(_MODULES)
    with mock.patch.dict(os.environ, {**ONE_THREAD, "PYTHONPATH": os.pathsep.join(sys.path)}):
        forkserver.ensure_running()
    child = _SERVER.Process(target=_call, args=(work, *arguments))
    child.start()
    assert child.pid is not None
    _children[child.pid] = child
    return child.pid


def wait_for_exit(pid: int) -> int:
    """Wait for a child to end; return its exit code, or minus the number of the signal that ended it."""
    child = _children.pop(pid, None)
    if child is None:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    child.join()
    assert child.exitcode is not None
    return child.exitcode


def end_children() -> None:
    """Kill the children that a failed test left running or stopped."""
    for pid in list(_children):
        os.kill(pid, signal.SIGKILL)
        wait_for_exit(pid)


def _fork(work: Callable[..., object], *arguments: object) -> int:
    pid = os.fork()
    if not pid:
        # Finalizers of native libraries (a gRPC channel) would wait for threads that only the parent has.
        gc.freeze()
        _call(work, *arguments)
    return pid


def _call(work: Callable[..., object], *arguments: object) -> None:
    """Never returns: the child exits without waiting for threads that an interrupted run left."""
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
