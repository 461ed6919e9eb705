"""The stage mirror: typed replicas."""
