"""Reads the table of capabilities and the markers of their tests; see scripts/rows."""
