"""A job's child process: its output, its end, and killing it."""

import sys
import threading
import time

from binlake_airflow.operators.base import JobProcess


def _python(code: str, lines: list[str]) -> JobProcess:
    return JobProcess(lines.append, (sys.executable, "-c", code))


def test_output_of_both_streams_and_the_status_are_returned() -> None:
    lines: list[str] = []
    code = "import sys; print('out', sys.argv[1], flush=True); print('err', file=sys.stderr); sys.exit(3)"
    assert _python(code, lines).run(["a b"]) == 3
    assert sorted(lines) == ["err", "out a b"]


def test_last_output_of_a_job_explains_its_death() -> None:
    job = _python("print('one'); print('Why: because'); print('')", [])
    assert job.run([]) == 0
    assert job.last_line == "Why: because"


def test_bytes_that_are_not_text_do_not_stop_the_job() -> None:
    lines: list[str] = []
    assert _python("import sys; sys.stdout.buffer.write(b'\\xff\\n')", lines).run([]) == 0
    assert lines == ["�"]


def test_kill_ends_the_child() -> None:
    lines: list[str] = []
    job = _python("import time; print('up', flush=True); time.sleep(600)", lines)
    ended: list[int] = []
    runner = threading.Thread(target=lambda: ended.append(job.run([])))
    runner.start()
    deadline = time.monotonic() + 120
    while not lines and time.monotonic() < deadline:
        time.sleep(0.01)
    job.kill()
    runner.join(120)
    assert lines == ["up"]
    assert ended == [-15]
