"""The binary log of a MySQL or MariaDB server: events, row images and definitions, turned into what a pump takes."""
