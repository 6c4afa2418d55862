"""Search spaces: distributions, constants, and configurations made of samples."""
