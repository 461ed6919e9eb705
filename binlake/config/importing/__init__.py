"""DM's and the drainer's configuration files as Binlake's, with a line about each of their keys."""
