"""What the containers of `docker-compose.yaml` run besides the `binlake` and `airflow` commands."""
