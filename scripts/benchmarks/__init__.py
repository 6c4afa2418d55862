"""The benchmarks of scripts/bench: a file per subcommand, the contenders, and shared modules."""
