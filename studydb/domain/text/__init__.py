"""Texts for people: how values are shown, rules for names, and hints for unknown names."""
