"""The status port of a TiDB, as pumps and windows ask it.

`answers` are its texts, `server` serves them, `arguments` are the options of commands that serve one.
"""
