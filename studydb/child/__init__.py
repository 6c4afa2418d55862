"""The fork server and the processes below it: templates, deciders, trials and their senders."""
