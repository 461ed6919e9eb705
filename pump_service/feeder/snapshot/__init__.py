"""The full load: what a source's tables held at one place of its log, read in chunks as rows that a pump takes."""
