"""Holding trials: heartbeat, buffer, retries; shared by the worker and by own loops."""
