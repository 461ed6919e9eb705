"""The stage merge: decodes, filters and routes payloads."""
