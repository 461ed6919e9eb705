"""Servers on this machine, for the tests and the demo: loopback only, private folders, no root."""
