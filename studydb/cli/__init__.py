"""The command line: one file per command group, imported when one of its commands is called."""
