"""`binlake generate_meta`: writes the savepoint from which a new original drainer starts (tidb-binlog 3.4)."""

from __future__ import annotations

import argparse
from pathlib import Path
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from binlake import tso
from binlake.cluster.control.commands import add_cluster, add_option, open_pd
from binlake.errors import ConfigError


class GenerateMetaCommand:
    """Writes `<data-dir>/savepoint` with the newest timestamp of PD."""

    examples = ("binlake generate_meta --data-dir /var/lib/drainer --pd-urls http://10.0.0.5:2379",)
    help = "write a savepoint file with PD's newest timestamp"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare PD, the folder, and a time zone for the shown time."""
        add_cluster(parser)
        add_option(
            parser, "data-dir", type=Path, default=Path("binlog_position"), help="folder of the file `savepoint`"
        )
        add_option(
            parser, "time-zone", default="", metavar="ZONE", help="also write the time in this zone, such as Asia/Tokyo"
        )

    def run(self, args: argparse.Namespace) -> int:
        """Write the savepoint, and print it."""
        with open_pd(args) as pd:
            ts = pd.fetch_ts()
        lines = [f"commitTS = {ts}"]
        if args.time_zone:
            lines.append(f"# {tso.to_datetime(ts).astimezone(_parse_zone(args.time_zone)).isoformat(' ')}")
        args.data_dir.mkdir(parents=True, exist_ok=True)
        (args.data_dir / "savepoint").write_text("\n".join(lines) + "\n")
        print("\n".join(lines))
        return 0


def _parse_zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError):
        raise ConfigError(
            "unknown time zone", where={"time-zone": name}, hint="use a name such as Asia/Tokyo or UTC"
        ) from None
