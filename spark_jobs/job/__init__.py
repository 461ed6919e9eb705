"""What all Spark jobs share: session, context, results, and running the stages."""
