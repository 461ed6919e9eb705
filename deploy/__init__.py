"""Everything around the programs: installers, servers on this machine, containers, and the checks of `make lint`."""
