"""Types, errors, clock and registry; the standard library alone."""
