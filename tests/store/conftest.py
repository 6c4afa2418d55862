"""Every test here that runs on both databases also runs through a transaction pooler."""

from harness.pooler import pgbouncer, pooled_url, storage_url

__all__ = ["pgbouncer", "pooled_url", "storage_url"]
