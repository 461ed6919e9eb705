"""The long-lived services: the pump, the embedded placement driver, the feeder, and two sources to try pumps with."""
