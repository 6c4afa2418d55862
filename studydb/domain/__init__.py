"""Values and rules without I/O: spaces, specs, lives of trials, records, views, errors."""
