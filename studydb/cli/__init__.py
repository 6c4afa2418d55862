"""The command line: one file per command group, imported when its command is called."""
