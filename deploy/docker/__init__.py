"""What the containers of `docker-compose.yaml` run beside the `binlake` and `airflow` commands."""
