"""Installers: they use only the standard library, run with a bare python3, and can be repeated."""
