"""The pipe's far end: the fork server, and the process that runs one attempt of a trial."""
