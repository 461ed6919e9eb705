"""The stage merge: payloads decoded, filtered and routed."""
