"""Search spaces: distributions, constants, and the configurations that are drawn from them."""
