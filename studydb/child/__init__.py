"""The fork server and its children: templates, deciders, and the processes that run trials."""
