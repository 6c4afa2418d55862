"""The benchmarks behind scripts/bench: one file per subcommand and one per contender."""
