"""The exceptions of sinkscope; a command ends with status 2 after a `CallError`, with 1 after any other."""


class SinkscopeError(Exception):
    """Base of all; its message, one line, says: expected …, found …; do …."""

    def __str__(self) -> str:
        return " ".join(line.strip() for line in super().__str__().split("\n"))


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or the name of its class."""
    return str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__


class CallError(SinkscopeError, ValueError):
    """An argument, name or setting that does not fit."""


class ModelError(SinkscopeError):
    """A model that cannot be used."""


class AttentionError(SinkscopeError):
    """Attention arguments that sinkscope does not model."""


class TraceError(SinkscopeError):
    """A trace that cannot be read or written."""


class MissingTensorError(TraceError, AttributeError):
    """A tensor that a trace does not hold, so that ``hasattr`` is false for it."""


class TrainingError(SinkscopeError):
    """A training run that cannot start or go on."""


class EvaluationError(SinkscopeError):
    """An evaluation that cannot start or go on."""
