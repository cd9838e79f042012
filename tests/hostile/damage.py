"""Damage to the bytes of a file."""

import random
from pathlib import Path


def flipped(content: bytes, source: random.Random) -> tuple[str, bytes]:
    """Return name and content of a file with a bit flipped, a piece cut out, doubled, zeroed, or the end missing."""
    at = source.randrange(len(content)) if source.random() < 0.5 else source.randrange(min(len(content), 2000))
    kind = source.randrange(6)
    if kind < 3:
        bit = 1 << source.randrange(8)
        return f"bit at {at}", content[:at] + bytes([content[at] ^ bit]) + content[at + 1 :]
    if kind == 3:
        return f"cut at {at}", content[:at]
    if kind == 4:
        return f"zeros at {at}", content[:at] + bytes(min(16, len(content) - at)) + content[at + 16 :]
    return f"doubled at {at}", content[:at] + content[max(0, at - 16) :]


def write(path: Path, content: bytes | str) -> None:
    """Write a damaged file."""
    path.write_bytes(content if isinstance(content, bytes) else content.encode(errors="surrogatepass"))
