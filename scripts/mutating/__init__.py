"""The parts of scripts/mutations: the guards, and copies of the checkout that lack one guard."""
