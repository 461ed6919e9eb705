"""Every SQL file that runs on a database. A package only so that the files are installed beside `binlake`."""
