"""Everything around the programs: installers of servers, and servers on this machine."""
