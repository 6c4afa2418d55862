"""What scripts/mutations is made of: the guards, and a copy of the checkout to take them out of."""
