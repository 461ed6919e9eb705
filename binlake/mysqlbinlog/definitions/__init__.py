"""Definitions of a MySQL or MariaDB source as TiDB would have them: tables as TableInfo, its DDL as DDL jobs.

`read` says what is read from information_schema, `tables` makes TableInfo of it; `statements` splits and standardises
DDL text, `changes` says what each single statement does.
"""
