"""Continuous validation: rows changed by applied windows are compared with the lake and with the source as it is now.

The lake has a row as of the target's checkpoint; the source's current row counts once the feeder proves that no change
lies between the two (docs/operate/validation.md).
"""

from binlake.repair.validation.run import ValidationResult, validate

__all__ = ["ValidationResult", "validate"]
