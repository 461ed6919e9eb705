"""`make licenses`: the licence of each package that `binlake[all]` installs, as its own metadata says."""

from __future__ import annotations

import sys
from importlib.metadata import Distribution, PackageNotFoundError, distribution

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

_CLASSIFIER = "License :: "


def main() -> int:
    """Print NAME VERSION LICENCE; exit status 1 if a package does not say its licence."""
    found = {name: read_license(package) for name, package in sorted(find_packages("binlake", {"all"}).items())}
    for name, text in found.items():
        print(f"{name:45} {distribution(name).version:18} {text or 'UNKNOWN'}")
    return 0 if all(found.values()) else 1


def find_packages(root: str, extras: set[str]) -> dict[str, Distribution]:
    """The installed packages that `root` with `extras` requires, directly or not, and `root`."""
    found: dict[str, Distribution] = {}
    seen, left = set[tuple[str, str]](), [(root, extra) for extra in sorted({"", *extras})]
    while left:
        name, extra = left.pop()
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        try:
            package = found.setdefault(name, distribution(name))
        except PackageNotFoundError:
            # Not on this platform, or left out by uv's overrides.
            continue
        for line in package.requires or ():
            one = Requirement(line)
            if one.marker is None or one.marker.evaluate({"extra": extra}):
                left += [(canonicalize_name(one.name), inner) for inner in ("", *sorted(one.extras))]
    return found


def read_license(package: Distribution) -> str:
    """The licence in one line: an SPDX expression where the package has one; empty if it says nothing."""
    classifiers = [
        line.rpartition(" :: ")[2]
        for line in package.metadata.get_all("Classifier") or ()
        if line.startswith(_CLASSIFIER)
    ]
    said = _read(package, "License-Expression") or ", ".join(classifiers) or _read(package, "License").strip()
    return said.splitlines()[0][:60] if said else ""


def _read(package: Distribution, field: str) -> str:
    return str(package.metadata[field]) if field in package.metadata else ""


if __name__ == "__main__":
    sys.exit(main())
