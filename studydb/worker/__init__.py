"""A worker: claims trials and runs each in a child process of its own."""
