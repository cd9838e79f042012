"""Bounds of single settings of samplers: each function raises `CallError` for a value beyond them."""

from typing import Any

from sinkscope.errors import CallError

MOST = 1 << 24
"""Tokens and steps of the longest generation."""
COLDEST, LARGEST = 1e-3, 1e3
"""Bounds of a temperature above 0, and of guidance: beyond them logits overflow, and no token can be drawn."""


def check_share(settings: Any, *names: str) -> None:
    """Raise an error for a setting that is no share."""
    for name in names:
        if not 0 <= getattr(settings, name) <= 1:
            raise CallError(f"{name}: expected a number from 0, which is off, to 1, found {getattr(settings, name)}")


def check_top_p(settings: Any) -> None:
    """Raise an error for a share of the probability from which no token can be drawn."""
    if not 0 < settings.top_p <= 1:
        raise CallError(f"top_p: expected a number above 0 and up to 1, found {settings.top_p}")


def check_positive(settings: Any, *names: str) -> None:
    """Raise an error for a number of tokens or steps that no generation has."""
    for name in names:
        if getattr(settings, name) < 1:
            raise CallError(f"{name}: expected at least 1, found {getattr(settings, name)}")
        if getattr(settings, name) > MOST:
            raise CallError(
                f"{name}: expected at most {MOST:,}, which no model can write, found {getattr(settings, name):,}"
            )


def check_not_negative(settings: Any, *names: str) -> None:
    """Raise an error for a number below 0, or none."""
    for name in names:
        if not 0 <= getattr(settings, name) < float("inf"):
            raise CallError(f"{name}: expected a finite number from 0 upwards, found {getattr(settings, name)}")


def check_scale(settings: Any, *names: str, least: float = COLDEST) -> None:
    """Raise an error for a temperature that is neither 0 nor within the bounds of one."""
    check_not_negative(settings, *names)
    for name in names:
        value = getattr(settings, name)
        if value != 0 and not least <= value <= LARGEST:
            raise CallError(
                f"{name}: expected 0, which takes the most probable one, or a number from {least:g} to {LARGEST:g}, found {value}"
            )


def check_seed(settings: Any) -> None:
    """Raise an error for a seed without room for those of a batch."""
    if not -(2**62) <= settings.seed < 2**62:  # 64 bits, with room for the rows of a batch
        raise CallError(f"seed: expected a number between −2^62 and 2^62, found {settings.seed}")


def nearest_divisor(length: int, near: int) -> int:
    """Return the divisor that is nearest to a number, the lower one of two."""
    near = min(near, length)
    return next(
        n for far in range(length + near) for n in (near - far, near + far) if 0 < n <= length and length % n == 0
    )
