"""The Airflow shell: a DAG per replication, operators that start Spark jobs by module name, and the page of windows.

Nothing heavy (pyspark, delta, deltalake, grpc) is imported when a DAG file or the plugin is loaded (hazards R-45).
"""
