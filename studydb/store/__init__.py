"""All SQL, one file per table group; joins the caller's transaction and never commits."""
