"""Hold trials: heartbeat, buffer, retries. Workers and own loops share this code."""
