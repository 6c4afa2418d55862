"""Specs as people type them: a grammar, never evaluated."""
