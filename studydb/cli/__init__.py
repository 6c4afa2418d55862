"""The command line: a file per command or group, imported when one of its commands is called."""
