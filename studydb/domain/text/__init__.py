"""Texts for people: how values are shown, what names may be, what an unknown name may mean."""
