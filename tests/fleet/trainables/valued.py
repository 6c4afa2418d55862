"""A trainable whose loss is a function of its parameters."""


def bowl(config, trial):
    """Report the square of `x`, plus `rate`, in one step."""
    trial.report({"loss": config["x"] ** 2 + config["model"]["rate"]})
