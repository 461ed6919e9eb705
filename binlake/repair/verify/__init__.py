"""Is the target what the lake, or the source itself, says it must be at its checkpoint; and what repairs it where not.

Checksums of ranges of keys on both sides; what is unequal is narrowed to rows, and rows decide
(docs/operate/verify.md).
"""

from binlake.repair.verify.comparing import TableResult
from binlake.repair.verify.differences import Difference
from binlake.repair.verify.run import Verification, VerifyOptions, verify

__all__ = ["Difference", "TableResult", "Verification", "VerifyOptions", "verify"]
