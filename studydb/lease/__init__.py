"""Get and hold trials, for workers and own loops. The own loop itself is here, too."""
