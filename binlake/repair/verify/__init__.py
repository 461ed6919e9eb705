"""Checks whether the target equals the lake, or the source itself, at its checkpoint, and repairs differences.

Checksums of key ranges are compared on both sides; unequal ranges are narrowed down to rows, and rows decide
(docs/operate/verify.md).
"""

from binlake.repair.verify.comparing import TableResult
from binlake.repair.verify.differences import Difference
from binlake.repair.verify.run import Verification, VerifyOptions, verify

__all__ = ["Difference", "TableResult", "Verification", "VerifyOptions", "verify"]
