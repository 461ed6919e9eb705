"""The binary log of a MySQL or MariaDB server: events, row images and definitions, converted to what a pump accepts."""
