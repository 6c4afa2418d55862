"""The nouns: states, space, records, decisions, views, errors. Imports no other room."""
