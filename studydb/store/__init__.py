"""All SQL, a file per group of tables. Functions join the caller's transaction; none commits."""
