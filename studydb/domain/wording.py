"""Numbers of things, as people write them."""


def counted(number: int, noun: str) -> str:
    """Count things: "1 trial", "2 trials"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
