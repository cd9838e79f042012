"""What the program's process answers, read in another one. Standard library only."""

from typing import Any

from sinkscope.evaluation.sandbox.foreign import Ask, Foreign, stand_in
from sinkscope.evaluation.sandbox.plain_data import Numbering, fill, unpack


def read_reply(
    reply: dict[str, Any], numbering: Numbering, foreign: dict[int, Foreign], given: list[Any], ask: Ask | None
) -> Any:
    """Return the value of a reply, or what stands for it; objects that the program has changed get their contents.

    Args:
        numbering: of the call.
        foreign: what stands for values that are no plain data, by number; one that is new is added.
        given: the arguments of the call, one of which may be its value.
        ask: asks the program for more of such a value.

    Raises:
        BaseException: what the program raised.
        ValueError: a reply that the sandbox did not make.
    """
    value = stand_in(reply, foreign, ask) if "foreign" in reply else unpack(reply.get("value"), numbering)
    contents = reply.get("contents")
    for number, packed in contents if isinstance(contents, list) else ():
        fill(numbering.objects[number], packed, numbering)
    if "error" in reply:
        raise _raised(reply)
    same = reply.get("same")
    return (
        given[same] if isinstance(same, int) and 0 <= same < len(given) and type(given[same]) is type(value) else value
    )


def _raised(reply: dict[str, Any]) -> BaseException:
    try:
        error = unpack(reply.get("raised"))
    except (TypeError, ValueError, RecursionError):
        error = None
    return error if isinstance(error, BaseException) else Exception(str(reply["error"]))
