"""Sampling settings, one frozen record for each sampler. Defaults are those of the published sampling function.

This module loads without torch: the command line builds its flags from these records.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from itertools import chain
from math import inf
from typing import Any, ClassVar, Literal, get_args, get_type_hints

from sinkscope.errors import CallError

RANGES = {
    **dict.fromkeys(("length", "steps", "block", "block_steps"), (1, inf)),
    **dict.fromkeys(("temperature", "alg_temp", "guidance"), (0, 1000)),
    "top_k": (0, inf),
    **dict.fromkeys(("top_p", "eps", "threshold", "factor"), (0, 1)),
}
"""Least and largest value of each setting; beyond them a sampler would write something else, without an error."""


class SettingsError(CallError, TypeError):
    """A setting that the sampler does not have; a TypeError, as for any unknown keyword argument."""


def out_of_range(record: Any, ranges: Mapping[str, tuple[float, float]]) -> Iterator[str]:
    """Yield which fields of a dataclass are beyond their range, or a choice that their type does not list."""
    hints = get_type_hints(type(record))
    for field in fields(record):
        value, choices = getattr(record, field.name), get_args(hints[field.name])
        if isinstance(field.default, str) and choices and value not in choices:
            yield f"{field.name}: expected {', '.join(choices[:-1])} or {choices[-1]}, found {value!r}"
        least, most = ranges.get(field.name, (-inf, inf))
        if field.name in ranges and value is not None and not least <= value <= most:
            expected = f"at least {least}" if most == inf else f"a number from {least} to {most}"
            yield f"{field.name}: expected {expected}, found {value}"


@dataclass(frozen=True)
class Settings:
    """Base of a sampler's settings.

    Attributes:
        length: tokens to write.
        follows_length: settings that take the value of ``length`` if only that is given.
    """

    length: int

    follows_length: ClassVar[tuple[str, ...]] = ("steps", "block")

    def __post_init__(self) -> None:
        for wrong in chain(out_of_range(self, RANGES), self.misfits()):
            raise CallError(wrong)

    def misfits(self) -> Iterator[str]:
        """Yield which settings do not fit together, and why."""
        yield from ()

    @property
    def most_calls(self) -> int:
        """The largest number of forward calls that a prompt takes."""
        parallel = getattr(self, "threshold", 0) or getattr(self, "factor", 0)
        return self.length if parallel else getattr(self, "steps", self.length)


@dataclass(frozen=True)
class BlockSettings(Settings):
    """Settings that LLaDA and MMaDA share.

    Attributes:
        length: tokens to write (published: ``gen_length``).
        steps: forward calls, shared evenly among the blocks.
        block: tokens of a block; blocks are finished one by one (published: ``block_length``).
        temperature: of the Gumbel noise; 0 takes the arg-max.
        guidance: unsupervised classifier-free guidance (published: ``cfg_scale``); 0 is none.
        remasking: which masked tokens are committed: the most confident ones, or random ones.
        seed: of the noise; row i of a batch draws from seed + i.
        block_order: right_to_left finishes the last block first; not published, a control for what follows the blocks.
        cache: which keys and values are kept from step to step; see `sinkscope.decoding.caches`. Not published, none
            computes everything.
        threshold: commits all masks of at least this probability in a step, and always the most probable one, however
            many steps that takes (Fast-dLLM); 0 commits a fixed number in each step.
        factor: commits the n most probable masks, for the largest n with (n + 1)(1 − p_n) below it (Fast-dLLM); 0 as
            above.
    """

    length: int = 128
    steps: int = 128
    block: int = 128
    temperature: float = 0.0
    guidance: float = 0.0
    remasking: Literal["low_confidence", "random"] = "low_confidence"
    seed: int = 0
    block_order: Literal["left_to_right", "right_to_left"] = "left_to_right"
    cache: str = "none"
    threshold: float = 0.0
    factor: float = 0.0

    even: ClassVar[bool] = True
    """Whether blocks must divide the length, and the steps share out among them, as the published loops assume."""

    def misfits(self) -> Iterator[str]:
        if self.even:
            yield from self._uneven()
        if self.threshold and self.factor:
            yield f"expected one of threshold and factor, found {self.threshold} and {self.factor}; set the other to 0"
        if self.cache != "none" and self.guidance:
            yield f"cache {self.cache}: does not go with guidance {self.guidance}; use --guidance 0 or --cache none"

    def _uneven(self) -> Iterator[str]:
        blocks = self.length // self.block
        if self.length % self.block:
            yield (
                f"length must be a multiple of block: {self.length} tokens do not split into blocks of {self.block}; "
                f"try --block {nearest_divisor(self.length, self.block)}"
            )
        elif self.steps % blocks:
            yield (
                f"steps must be a multiple of the number of blocks: {self.steps} steps do not share out among {blocks} "
                f"blocks; try --steps {max(1, round(self.steps / blocks)) * blocks}"
            )
        if self.steps > self.length:
            yield f"steps must not exceed length, found {self.steps} steps for {self.length} tokens"


@dataclass(frozen=True)
class LLaDASettings(BlockSettings):
    """LLaDA's semi-autoregressive low-confidence remasking (ML-GSAI/LLaDA, generate.py).

    Attributes:
        logits_eos_inf: whether EOS is never predicted.
        confidence_eos_eot_inf: whether EOS and EoT are committed last (see the quirk in `llada`).
    """

    logits_eos_inf: bool = False
    confidence_eos_eot_inf: bool = False


@dataclass(frozen=True)
class MMaDASettings(BlockSettings):
    """MMaDA's text sampler: LLaDA's loop, confidences in float64, no EOS switches (Gen-Verse/MMaDA, generate.py)."""


@dataclass(frozen=True)
class A2DSettings(BlockSettings):
    """dllm's samplers for models adapted from causal ones (ZHZisZZ/dllm, samplers/mdlm.py and bd3lm.py).

    Attributes:
        algorithm: how the model was trained: masked diffusion (mdlm), or block diffusion (bd3lm), which stops after the
            block with EOS.
        right_shift_logits: whether the logits of a position predict the token after it, as in the causal model.
    """

    algorithm: Literal["mdlm", "bd3lm"] = "mdlm"
    right_shift_logits: bool = False

    even: ClassVar[bool] = False

    def misfits(self) -> Iterator[str]:
        yield from super().misfits()
        beyond = {"cache": "none", "threshold": 0.0, "factor": 0.0, "block_order": "left_to_right"}
        for name, value in beyond.items():
            if self.algorithm == "bd3lm" and getattr(self, name) != value:
                yield f"{name}: goes with mdlm, not with bd3lm, whose blocks are written from the left behind a cache"


@dataclass(frozen=True)
class DreamSettings(Settings):
    """Dream's sampler over the whole canvas (Dream-org/Dream-v0-Instruct-7B, generation_utils.py).

    The published function writes 20 tokens in 512 steps unless told otherwise, and so does this one.

    Attributes:
        length: tokens to write (published: ``max_new_tokens``).
        steps: forward calls; there may be more of them than tokens, some then commit nothing.
        temperature: divides the logits before a token is drawn; 0 takes the arg-max.
        top_p: choose among the smallest set of tokens whose probabilities reach it; 1 is all. It changes confidences
            also at temperature 0.
        top_k: choose among so many tokens; 0 is all. It changes confidences also at temperature 0.
        algorithm: which masks are committed first: random ones (origin), those with the most probable token
            (maskgit_plus), with the largest distance between the two best tokens (topk_margin), with the least entropy
            (entropy) (published: ``alg``).
        alg_temp: draws positions from softmax(confidence / alg_temp); 0 takes the most confident ones. Not used by
            origin.
        eps: the last of the time steps, which run evenly from 1.
        seed: of the draws; row i of a batch draws from seed + i.
        cache: which keys and values are kept from step to step; see `sinkscope.decoding.caches`. Not published, none
            computes everything.
        threshold: commits all masks of a block of at least this probability in a step, and always the most probable one
            (Fast-dLLM, with its cache); 0 commits by the algorithm.
    """

    length: int = 20
    steps: int = 512
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    algorithm: Literal["origin", "maskgit_plus", "topk_margin", "entropy"] = "origin"
    alg_temp: float = 0.0
    eps: float = 1e-3
    seed: int = 0
    cache: str = "none"
    threshold: float = 0.0

    def misfits(self) -> Iterator[str]:
        if self.threshold and not self.cache.startswith("fast-dllm"):
            yield f"threshold: expected Fast-dLLM's cache, found {self.cache}; use --cache fast-dllm-dual:block=32"


@dataclass(frozen=True)
class BlockDiffusionSettings(Settings):
    """Settings that SDAR and LLaDA 2 share.

    Attributes:
        length: tokens to write (published: ``gen_length``); the last block is written to its end.
        block: tokens of a block (published: ``block_length``); SDAR was trained with blocks of 4.
        block_steps: forward calls that denoise a block (published: ``denoising_steps``, LLaDA 2's ``steps``), which
            share its tokens evenly.
        temperature: divides the logits before a token is drawn; 0 takes the arg-max, as SDAR's published evaluation
            does.
        top_k: choose among so many tokens; 0 is all.
        top_p: choose among the smallest set of tokens whose probabilities reach it; 1 is all.
        threshold: masks above this probability are committed, at least the step's share (SDAR:
            ``confidence_threshold``, of dynamic).
        stop: whether writing stops after the block in which an answer ends (SDAR: ``stopping_criteria_idx``; LLaDA 2's
            code always does).
        seed: of the draws; row i of a batch draws from seed + i.
    """

    length: int = 128
    block: int = 4
    block_steps: int = 4
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    threshold: float = 0.85
    stop: bool = False
    seed: int = 0

    follows_length: ClassVar = ()
    remasking: ClassVar = "dynamic"
    replaces: ClassVar = False

    def misfits(self) -> Iterator[str]:
        if self.block_steps > self.block:
            yield f"block_steps must not exceed block, found {self.block_steps}; try --block-steps {self.block}"

    @property
    def most_calls(self) -> int:
        """One for the whole blocks of the prompt; for each block its steps and the call that reads it."""
        return 1 + (-(-self.length // self.block) + 1) * (self.block_steps + 1)


@dataclass(frozen=True)
class SDARSettings(BlockDiffusionSettings):
    """SDAR's block diffusion behind a cache of finished blocks (JetAstra/SDAR, generate.py; defaults of its command).

    Attributes:
        remasking: which masks are committed (published: ``remasking_strategy``): those above the threshold, at least
            the step's share (dynamic, published: ``low_confidence_`` in front), the step's share of the most probable
            ones (static), or of the leftmost ones (sequential).
    """

    remasking: Literal["dynamic", "static", "sequential"] = "dynamic"  # type: ignore[misc]

    replaces: ClassVar = True  # see the first quirk of sdar.py


@dataclass(frozen=True)
class LLaDA2Settings(BlockDiffusionSettings):
    """LLaDA 2's block diffusion: SDAR's with other defaults (``generate`` of modeling_llada2_moe.py)."""

    length: int = 2048
    block: int = 32
    block_steps: int = 32
    temperature: float = 0.0
    threshold: float = 0.95
    stop: bool = True


@dataclass(frozen=True)
class AutoregressiveSettings(Settings):
    """One token a step from the left, with a cache of keys and values.

    Attributes:
        length: most tokens to write; writing stops at EOS.
        temperature: divides the logits; 0 takes the arg-max.
        top_p: choose among the smallest set of tokens whose probabilities reach it; 1 is all.
        top_k: choose among so many tokens; 0 is all.
        seed: of the draws; row i of a batch draws from seed + i.
    """

    length: int = 128
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0


ADDED = ("cache", "threshold", "factor")
"""Settings that no published sampler has; manifests and results name them only where they are used."""


def described(settings: Any) -> dict[str, Any]:
    """Return settings, those of a sampler or of a likelihood, as plain values, for manifests and results."""
    defaults = {field.name: field.default for field in fields(settings) if field.name in ADDED}
    return {name: value for name, value in asdict(settings).items() if name not in defaults or value != defaults[name]}


def nearest_divisor(length: int, near: int) -> int:
    """Return the divisor that is nearest to a number, the lower one of two."""
    divisors = (number for number in range(1, length + 1) if length % number == 0)
    return min(divisors, key=lambda number: (abs(number - near), number))
