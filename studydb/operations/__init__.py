"""
One file per transaction: read, decide, write. The only place that commits.

Lock order, the same everywhere: rungs (ascending step), trials (ascending id), the askers' queue,
the study row, one counter shard last. Every operation may be sent again after a lost reply: claims,
asks, saves and requests carry a token that is UNIQUE, batches carry their attempt's flush number.
"""
