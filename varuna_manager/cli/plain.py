"""What others say, made safe to show: nodes, scripts and clouds have their words in what is printed."""

_SPACES = "\n\t"


def plain(text: str) -> str:
    """Return one line of text in which all that could steer a terminal or forge a line is visible."""
    return "".join(c if c.isprintable() else _visible(c) for c in text)


def _visible(character: str) -> str:
    return " " if character in _SPACES else character.encode("unicode_escape").decode()
