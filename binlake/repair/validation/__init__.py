"""Continuous validation: rows that applied windows changed, compared with the lake and with the source as it is now.

The lake holds what a row is at the target's checkpoint; the source's present row counts once the feeder proves that
nothing lies between the two (docs/operate/validation.md).
"""

from binlake.repair.validation.run import Validated, validate

__all__ = ["Validated", "validate"]
