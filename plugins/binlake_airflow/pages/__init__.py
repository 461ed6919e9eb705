"""The pages inside Airflow's UI, and the same as JSON."""
