"""How Airflow finds the plugin: by its entry point, or by mounting `plugins/` (hazards R-45)."""

import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

from binlake_airflow.plugin import BinlakePlugin

PLUGINS = Path(__file__).resolve().parents[2] / "plugins"

_MOUNT = """
import sys
before = set(sys.modules)
from airflow._shared.plugins_manager import _load_plugins_from_plugin_directory
found, errors = _load_plugins_from_plugin_directory(sys.argv[1])
print([plugin.name for plugin in found], errors)
from pathlib import Path
stems = {path.stem for path in Path(sys.argv[1]).rglob("*.py")} - {"binlake_plugin", "__init__"}
print(len(stems) > 30, sorted(stems & set(sys.modules) - before))
"""


def test_entry_point_names_the_plugin() -> None:
    (point,) = entry_points(group="airflow.plugins", name="binlake")
    assert point.load() is BinlakePlugin


def test_mounting_the_folder_loads_one_file_and_shadows_no_module() -> None:
    done = subprocess.run([sys.executable, "-c", _MOUNT, str(PLUGINS)], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-2:] == ["['binlake'] {}", "True []"]
