"""A feed as files in a folder or an object store, laid out as TiCDC's storage sink does."""
