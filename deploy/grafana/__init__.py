"""Grafana boards for pumps, feeders and replications, written from `boards.py`: `python -m deploy.checks docs`."""
