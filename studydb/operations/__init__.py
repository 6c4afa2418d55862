"""
Operations: transactions that read, decide and write. Apart from migrations, no other code commits.

Every transaction waits for locks in this order: rungs (ascending bracket, then step), trials
(ascending id), checkpoints (ascending id), the queue of asks, the study's row, one counter shard.
Every operation can be sent again after a lost reply: claims, asks and requests have a UNIQUE token,
saves and workers a UNIQUE uuid, and batches a flush number.
"""
