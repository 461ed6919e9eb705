"""What a run reports: metrics, notes, assets, alerts, OpenLineage."""
