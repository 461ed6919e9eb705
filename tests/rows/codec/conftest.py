"""The codec's tests build their tables with the schema room's helper."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "schema"))
