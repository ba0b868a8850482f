"""Units of time, the longest first."""

SECONDS = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
