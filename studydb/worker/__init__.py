"""A worker: claims trials and runs each in a child process."""
