"""All SQL on rows, a file per group of tables. Functions join the caller's transaction."""
