"""
One file per operation: a transaction that reads, decides and writes. Only this package commits.

Every transaction takes locks in this order: rungs (ascending step), trials (ascending id), the
queue of asks, the study's row, one counter shard. Every operation can be sent again after a lost
reply: claims, asks, saves and requests have a UNIQUE token, and batches have a flush number.
"""
