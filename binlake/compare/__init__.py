"""The one definition of "equal" between what a capture recorded and what a target shows (docs/understand/equality.md).

An independent path: the target is read by plain SQL, nothing is decoded by the pipeline's code.
"""

from binlake.compare.expected import read_expected_states
from binlake.compare.state import Comparison, compare_state
from binlake.compare.target import connect

__all__ = ["Comparison", "compare_state", "connect", "read_expected_states"]
