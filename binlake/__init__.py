"""The core of Binlake: codec, schema history, windows, net change, statements, downstream; no Spark, no Airflow."""
