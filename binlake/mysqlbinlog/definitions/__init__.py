"""Definitions of a MySQL or MariaDB source as TiDB would have them: tables as TableInfo, its DDL as DDL jobs.

`descriptions` reads information_schema, `tables` makes TableInfo of it; `statements` splits and standardises DDL text,
`writer` represents what each single statement changes.
"""
