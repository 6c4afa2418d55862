"""The command line: a file per command or group of commands, imported when one is called."""
