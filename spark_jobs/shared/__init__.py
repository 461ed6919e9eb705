"""What more than one stage uses: net changes, statements, the windows of sinks, messages of feeds."""
