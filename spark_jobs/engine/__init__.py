"""Where a stage's tasks run: in this process, or on Spark. A stage says what a task does, never where it runs."""
