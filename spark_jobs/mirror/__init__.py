"""The stage mirror: keeps typed replicas of the source's tables in the lake."""
