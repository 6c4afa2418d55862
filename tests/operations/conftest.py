"""Here every test that runs on both databases runs through a transaction pooler, too."""

from harness.pooler import pgbouncer, pooled_url, storage_url

__all__ = ["pgbouncer", "pooled_url", "storage_url"]
