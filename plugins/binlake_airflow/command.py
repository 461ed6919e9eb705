"""`binlake airflow dags FOLDER`: put Binlake's DAG files into an Airflow's folder of DAGs.

The files only import `binlake_airflow`, so an upgrade of the package does not change them.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from binlake.errors import ConfigError

_PACKAGE = Path(__file__).resolve().parent


class AirflowCommand:
    """`binlake airflow`."""

    examples = ("binlake airflow dags /opt/airflow/dags",)
    help = "put Binlake's DAG files into an Airflow's folder of DAGs"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""
        parser.add_argument("action", choices=["dags"], help="write the DAG file")
        parser.add_argument("folder", type=Path, help="Airflow's `[core] dags_folder`")

    def run(self, args: argparse.Namespace) -> int:
        """Copy the files and print where they are."""
        if not args.folder.is_dir():
            raise ConfigError(
                "there is no such folder", where={"folder": args.folder}, hint="name `[core] dags_folder`"
            )
        for file in find_dag_files():
            print(shutil.copyfile(file, args.folder / file.name))
        return 0


def find_dag_files() -> list[Path]:
    """Binlake's DAG files: in a wheel they are in `dagfiles/`, in a checkout in `dags/`."""
    packaged = _PACKAGE / "dagfiles"
    folder = packaged if packaged.is_dir() else _PACKAGE.parents[1] / "dags"
    return sorted(folder.glob("binlake_*.py"))
