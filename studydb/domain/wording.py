"""Numbers of things as people write them, and texts that a terminal can be given."""


def counted(number: int, noun: str) -> str:
    """Count things: "1 trial", "2 trials"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def visible(text: str) -> str:
    """Text without line breaks and control characters, which could steer a terminal."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )
