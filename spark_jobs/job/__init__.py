"""What every Spark job shares: its session, its context, its result, and the run of its stages."""
