"""Converts configuration files of DM and the drainer to Binlake's, and reports on each of their keys."""
