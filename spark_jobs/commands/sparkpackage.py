"""`binlake spark package`: the archive that executors of a Spark cluster need, and the settings to use it."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from binlake.base.commandline import add_output
from binlake.spark_jobs.engine.package import PYTHON, build_package_conf, build_package_env, write_package


class SparkCommand:
    """Prepare a Spark cluster."""

    examples = (
        "binlake spark package binlake-spark.tar.gz",
        "binlake spark package binlake-spark.tar.gz --url https://files.example.org/binlake-spark.tar.gz",
    )
    help = "prepare a Spark cluster: write the archive that its executors need"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """`package`: the archive's file, and where the cluster will find it."""
        actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
        package = actions.add_parser(
            "package", help="write the archive that executors need, and print Spark's settings"
        )
        package.add_argument("file", type=Path, metavar="FILE", help="the archive to write: NAME.tar.gz or NAME.tar")
        package.add_argument(
            "--url", default="", help="where the driver will find it; default: FILE, which the driver serves itself"
        )
        add_output(package)

    def run(self, args: argparse.Namespace) -> int:
        """Write the archive and print the settings."""
        size = write_package(args.file)
        conf = build_package_conf(args.url or str(args.file.resolve()))
        if args.output == "json":
            print(json.dumps({"file": str(args.file), "bytes": size, "conf": conf, "env": build_package_env()}))
            return 0
        width = max(map(len, conf))
        print(f"# {args.file}: {size / 1e6:,.0f} MB. Executors need Spark and {PYTHON}, nothing else of this machine.")
        print("# spark-defaults.conf of the driver (spark-submit, --master) or of the Connect server:")
        print("\n".join(f"{name:<{width}} {value}" for name, value in conf.items()))
        print("# environment of the same process:")
        print("\n".join(f"{name}={value}" for name, value in build_package_env().items()))
        return 0
