"""Connection types of Airflow for the servers around a replication, each with a test that the UI's button runs."""
