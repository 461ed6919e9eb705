"""The long-lived services: the pump, the embedded placement driver, and the replayer of recorded captures."""
