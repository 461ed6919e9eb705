"""Installers: standard library only, run by a bare python3, repeatable."""
