"""Debezium's JSON as TiCDC writes it: key and value with schemas, source block, rows before and after."""
