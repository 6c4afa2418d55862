"""Specs such as ASHA(max_t=27): typed by people, stored as JSON, never evaluated as Python."""
