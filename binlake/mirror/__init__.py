"""Typed Delta replicas of the source's tables: types, one replica's operations, and the order in which they run.

All code here uses delta-rs on one table at a time, so it runs in any Python process, such as Spark's workers.
"""

from binlake.mirror.apply import MirroredRows, apply_component
from binlake.mirror.plan import ComponentPlan, MirrorPlan, plan_mirrors
from binlake.mirror.versions import MirrorState, MirrorVersions

__all__ = [
    "ComponentPlan",
    "MirrorPlan",
    "MirrorState",
    "MirrorVersions",
    "MirroredRows",
    "apply_component",
    "plan_mirrors",
]
