"""Charts as inline SVG: pure functions from numbers to escaped markup; no number of any kind breaks one."""
