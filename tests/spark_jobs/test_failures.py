"""What Spark raises becomes an error of ours, whose class decides about a retry; the rest stays what it is."""

from __future__ import annotations

import pytest
from delta.exceptions import ConcurrentAppendException, ConcurrentDeleteReadException, MetadataChangedException

from binlake.errors import SchemaError, Transient
from spark_jobs.failures import translate


@pytest.mark.parametrize(
    "conflict", [ConcurrentAppendException, ConcurrentDeleteReadException, MetadataChangedException]
)
def test_a_conflict_of_two_writers_of_a_delta_table_is_tried_again(conflict: type[Exception]) -> None:
    # R-41, C-02
    found = translate(conflict("Files were added to partition [window=1-2]\nJava stack"))
    assert type(found) is Transient
    assert "Files were added" in str(found)
    assert "Java stack" not in str(found)


def test_an_error_of_a_worker_is_found_in_the_text_of_java() -> None:
    text = "Job aborted\n  binlake.errors.SchemaError: no such column [table=d.t] Hint: look\n\tat java.lang.Thread"
    found = translate(RuntimeError(text))
    assert type(found) is SchemaError
    assert (found.message, found.hint) == ("no such column [table=d.t]", "look")


def test_anything_else_is_nobodys_error() -> None:
    assert translate(RuntimeError("out of memory")) is None
