"""The nouns: space, specs, life of a trial, records, views, errors. Imports no other room."""
