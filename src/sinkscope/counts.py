"""`counted` writes a count with its noun."""


def counted(count: int, noun: str, form: str = "") -> str:
    """Return a count with its noun: 1 move, 2 moves; ``form`` is how Python formats the number."""
    return f"{count:{form}} {noun}{'' if count == 1 else 's'}"
