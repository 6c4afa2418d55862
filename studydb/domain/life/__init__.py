"""The life of a trial: states, decisions, rules, and the state after the end of an attempt."""
