"""
All SQL that reads or changes rows, with one file for each group of tables.

Each function joins the caller's transaction.
"""
