"""Feeds as files in a folder or an object store, in the layout of TiCDC's storage sink."""
