"""Continuous validation: compares rows changed by applied windows with the lake and with the source's present rows.

The lake has a row as of the target's checkpoint. The source's current row is used once the feeder proves that the row
did not change between checkpoint and reading (docs/operate/validation.md).
"""

from binlake.extras.validation.run import ValidationResult, validate

__all__ = ["ValidationResult", "validate"]
