"""The fork server, and the child processes that run one attempt of a trial each."""
