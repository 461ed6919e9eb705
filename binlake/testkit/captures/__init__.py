"""The definition of equality between a recorded state of a capture and a target (docs/understand/equality.md).

The comparison is independent of the pipeline: it reads the target by plain SQL and uses none of the pipeline's
decoders.
"""

from binlake.testkit.captures.capture import read_expected_states
from binlake.testkit.captures.state import Comparison, compare_state, connect

__all__ = ["Comparison", "compare_state", "connect", "read_expected_states"]
