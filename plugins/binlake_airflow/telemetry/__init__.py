"""What a run tells others: metrics, notes, assets, alerts, OpenLineage."""
