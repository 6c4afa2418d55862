"""The nouns: states, space, records, decisions, views, errors. Imports nothing of the other rooms."""
