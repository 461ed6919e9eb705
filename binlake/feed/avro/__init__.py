"""TiCDC's Avro protocol: schemas, names and bodies (reference/data-migration-and-ticdc.md 2.1 to 2.5)."""
