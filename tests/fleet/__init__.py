"""Worker processes that tests start, watch and kill, and what must hold when they have ended."""
