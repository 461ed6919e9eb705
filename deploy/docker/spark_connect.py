"""The Spark Connect server of a container: the settings of `deploy.local.spark_connect`, listening on its network."""

from __future__ import annotations

import os
from pathlib import Path

from deploy.local.spark_connect import build_environment, build_server_command


def main() -> None:
    """Become the server; SPARK_MASTER, SPARK_DRIVER_MEMORY, SPARK_DRIVER_JAVA and BINLAKE_SPARK_FOLDER set master,
    memory, more options of the JVM and folder."""
    folder = Path(os.environ.get("BINLAKE_SPARK_FOLDER", "/var/lib/binlake/spark"))
    folder.mkdir(parents=True, exist_ok=True)
    master = os.environ.get("SPARK_MASTER", "local[*]")
    command = build_server_command(
        folder,
        15002,
        master=master,
        memory=os.environ.get("SPARK_DRIVER_MEMORY", "4g"),
        java=os.environ.get("SPARK_DRIVER_JAVA", ""),
        # Only the compose network reaches it; its port is published only on the host's loopback.
        bind="0.0.0.0",
    )
    os.chdir(folder)
    os.execvpe(command[0], command, {**os.environ, **build_environment(master)})


if __name__ == "__main__":
    main()
