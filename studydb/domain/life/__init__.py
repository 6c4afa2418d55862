"""The life of a trial: states, decisions, rules, and what becomes of it when an attempt ends."""
