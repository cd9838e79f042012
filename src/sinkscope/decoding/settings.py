"""Samplers by name, and their settings, one frozen record for each; defaults are those of the published function.

This module loads without torch: the command line builds its flags from these records.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields
from importlib import import_module
from itertools import chain
from math import inf
from typing import Any, ClassVar, Literal, get_args, get_type_hints

from sinkscope.errors import CallError
from sinkscope.models.families import FAMILIES
from sinkscope.models.family import Family

RANGES = {
    **dict.fromkeys(("length", "steps", "block", "block_steps", "small_block"), (1, inf)),
    **dict.fromkeys(("temperature", "alg_temp", "guidance"), (0, 1000)),
    "top_k": (0, inf),
    **dict.fromkeys(("top_p", "threshold", "factor"), (0, 1)),
    "eps": (-1e-4, 1),  # below, a time step of a usual schedule would be 0
}
"""Least and largest value of each setting; beyond them a sampler would write something else, without an error."""


class SettingsError(CallError, TypeError):
    """A setting that the sampler does not have; a TypeError, as for any unknown keyword argument."""


@dataclass(frozen=True)
class Settings:
    """Base of a sampler's settings.

    Attributes:
        length: tokens to write.
        temperature: divides the logits before a token is drawn; 0 takes the arg-max.
        top_p: choose among the smallest set of tokens whose probabilities reach it; 1 is all.
        top_k: choose among so many tokens; 0 is all.
        seed: of the draws; row i of a batch draws from seed + i.
        cache: which keys and values are kept from step to step; see `sinkscope.decoding.caches`. Not published, none
            computes everything.
        follows_length: settings that take the value of ``length`` if only that is given.
    """

    length: int

    follows_length: ClassVar[tuple[str, ...]] = ("steps", "block")

    def __post_init__(self) -> None:
        for wrong in chain(self._beyond(), self.misfits()):
            raise CallError(wrong)

    def _beyond(self) -> Iterator[str]:
        hints = get_type_hints(type(self))
        for field in fields(self):
            value, choices = getattr(self, field.name), get_args(hints[field.name])
            if isinstance(field.default, str) and choices and value not in choices:
                yield f"{field.name}: expected {', '.join(choices[:-1])} or {choices[-1]}, found {value!r}"
            least, most = RANGES.get(field.name, (-inf, inf))
            if field.name in RANGES and not least <= value <= most:
                expected = f"at least {least}" if most == inf else f"a number from {least} to {most}"
                yield f"{field.name}: expected {expected}, found {value}"

    def misfits(self) -> Iterator[str]:
        yield from ()

    @property
    def most_calls(self) -> int:
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
        block_order: right_to_left finishes the last block first; not published, a control for what follows the blocks.
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

    even: ClassVar[bool] = True  # blocks must divide the length, and share out the steps, as in the published loops

    def misfits(self) -> Iterator[str]:
        blocks, length = self.length // self.block, self.length
        if self.even and length % self.block:
            divisors = (number for number in range(1, length + 1) if length % number == 0)
            yield (
                f"length must be a multiple of block: {length} tokens do not split into blocks of {self.block}; "
                f"try --block {min(divisors, key=lambda number: abs(number - self.block))}"
            )
        elif self.even and self.steps % blocks:
            yield (
                f"steps must be a multiple of the number of blocks: {self.steps} steps do not share out among {blocks} "
                f"blocks; try --steps {max(1, round(self.steps / blocks)) * blocks}"
            )
        if self.even and self.steps > length:
            yield f"steps must not exceed length, found {self.steps} steps for {length} tokens"
        if self.threshold and self.factor:
            yield f"expected one of threshold and factor, found {self.threshold} and {self.factor}; set the other to 0"
        if self.cache != "none" and self.guidance:
            yield f"cache {self.cache}: does not go with guidance {self.guidance}; use --guidance 0 or --cache none"


@dataclass(frozen=True)
class LLaDASettings(BlockSettings):
    """LLaDA's semi-autoregressive low-confidence remasking (ML-GSAI/LLaDA, generate.py).

    Attributes:
        logits_eos_inf: whether EOS is never predicted.
        confidence_eos_eot_inf: whether EOS and EoT are committed last (see the quirk in `blocks`).
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
class OpenDLLMSettings(Settings):
    """Open-dLLM's sampler over the whole canvas (pengzhangzhi/Open-dLLM, generation_utils.py), Dream's with changes.

    Attributes:
        length: tokens to write (published: ``max_new_tokens``).
        steps: forward calls; there may be more of them than tokens, as by default; some then commit nothing.
        top_p, top_k: change confidences also at temperature 0.
        algorithm: which masks are committed first (published: ``alg``): random ones (origin), those with the most
            probable token (maskgit_plus), with the largest distance between the two best tokens (topk_margin), with the
            least entropy (entropy), or all, while the least probable tokens are masked again (Open-dLLM's p2).
        alg_temp: draws positions by confidence / alg_temp, Dream from its softmax, Open-dLLM with Gumbel noise; 0 takes
            the most confident ones. Not used by origin and p2.
        eps: the last of the time steps, which run evenly from 1; from 0 on the last two tokens come together, even with
            a step for each, at -1e-4 one by one.
    """

    length: int = 20
    steps: int = 512
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    algorithm: Literal["origin", "maskgit_plus", "topk_margin", "entropy", "p2"] = "entropy"
    alg_temp: float = 0.0
    eps: float = 1e-3
    seed: int = 0


@dataclass(frozen=True)
class DreamSettings(OpenDLLMSettings):
    """Dream's sampler over the whole canvas (Dream-org/Dream-v0-Instruct-7B, generation_utils.py).

    Attributes:
        threshold: commits all masks of a block of at least this probability in a step, and always the most probable one
            (Fast-dLLM, with its cache); 0 commits by the algorithm.
    """

    algorithm: Literal["origin", "maskgit_plus", "topk_margin", "entropy"] = "origin"
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
        temperature: 0 takes the arg-max, as SDAR's published evaluation does.
        threshold: masks above this probability are committed, at least the step's share (SDAR:
            ``confidence_threshold``, of dynamic).
        stop: whether writing stops after the block in which an answer ends (SDAR: ``stopping_criteria_idx``; LLaDA 2's
            code always does).
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
        # One for the whole blocks of the prompt; for each block its steps and the call that reads it.
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

    replaces: ClassVar = True  # see the first quirk of `block_diffusion`


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
class FastDLLMv2Settings(Settings):
    """Fast-dLLM v2's block diffusion (Efficient-Large-Model/Fast_dLLM_v2_7B, ``generate`` of modeling.py).

    Attributes:
        length: tokens to write (published: ``max_new_tokens``); the last block is written to its end.
        block: tokens of a block (published: ``block_size``); the model was trained with 32.
        small_block: tokens of a small block (published: ``small_block_size``).
        threshold: masks of a small block above this probability are committed, and always the most probable one.
    """

    length: int = 128
    block: int = 32
    small_block: int = 8
    threshold: float = 1.0
    temperature: float = 0.0
    top_p: float = 0.95
    seed: int = 0

    follows_length: ClassVar = ()
    top_k: ClassVar = 0

    def misfits(self) -> Iterator[str]:
        if self.block % self.small_block:
            yield f"small_block: expected a divisor of {self.block}, found {self.small_block}"

    @property
    def most_calls(self) -> int:
        return 1 + -(-self.length // self.block) * (self.block + 1)


@dataclass(frozen=True)
class AutoregressiveSettings(Settings):
    """One token a step from the left, with a cache of keys and values; writing stops at EOS."""

    length: int = 128
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0


SHIPPED: dict[str, tuple[str, type[Settings]]] = {
    "llada": ("blocks", LLaDASettings),
    "mmada": ("blocks", MMaDASettings),
    "dream": ("dream", DreamSettings),
    "open_dllm": ("dream", OpenDLLMSettings),
    "sdar": ("block_diffusion", SDARSettings),
    "llada2": ("block_diffusion", LLaDA2Settings),
    "fast_dllm_v2": ("block_diffusion", FastDLLMv2Settings),
    "a2d": ("block_diffusion", A2DSettings),
    "autoregressive": ("autoregressive", AutoregressiveSettings),
}
"""The module and the settings of each sampler; that of an installed package is in a module of its own name."""

OTHER_NAMES = {
    "max_new_tokens": "length",
    "max_length": "length",
    "gen_length": "length",
    "block_length": "block",
    "block_size": "block",
    "small_block_size": "small_block",
    "cfg_scale": "guidance",
    "do_sample": "temperature",
    "alg": "algorithm",
    "denoising_steps": "block_steps",
    "remasking_strategy": "remasking",
    "confidence_threshold": "threshold",
    "stopping_criteria_idx": "stop",
}
"""Our name for each setting of other libraries."""


def find_sampler(name: str) -> Callable[..., Any]:
    """Return the function that writes, one step at a time: ``NAME_steps(model, batch, settings)``."""
    module = SHIPPED[name][0] if name in SHIPPED else name
    return getattr(import_module(f"sinkscope.decoding.{module}"), f"{name}_steps")


def settings_of(sampler: str) -> type[Settings]:
    """Return the class of a sampler's settings, which its function names."""
    return SHIPPED[sampler][1] if sampler in SHIPPED else get_type_hints(find_sampler(sampler))["settings"]


def all_settings() -> dict[str, type[Settings]]:
    """Return the class of the settings of every sampler that a family names, by the sampler's name."""
    return {name: settings_of(name) for name in [*SHIPPED, *(family.sampler for family in FAMILIES.values())]}


def resolve_settings(family: Family, **given: Any) -> Settings:
    """Return the settings of a family's sampler; for diffusion, ``length`` alone sets ``steps`` and ``block`` to it.
    `SettingsError` names the right one for an unknown setting; `CallError` says what does not fit together.
    """
    import numpy as np  # not for help

    kind = settings_of(family.sampler)
    given = {name: value.item() if isinstance(value, np.generic) else value for name, value in given.items()}
    names = [field.name for field in fields(kind)]
    for name in given:
        if name not in names:
            other = OTHER_NAMES.get(name)
            hint = f"; here it is called {other}" if other in names else ""
            raise SettingsError(f"{family.name} has no setting {name!r}{hint}. Its settings are {', '.join(names)}")
    if "length" in given:
        given = {**{name: given["length"] for name in kind.follows_length if name in names}, **given}
    settings = kind(**given)
    if getattr(settings, "cache", "none") != "none":
        from sinkscope.decoding.caches.policy import parse_cache  # not for help

        if (policy := parse_cache(settings.cache)) is not None:  # type: ignore[attr-defined]
            for wrong in policy.misfits(family, settings):
                raise policy.refuse(wrong)
    return settings


def described(settings: Any) -> dict[str, Any]:
    """Return settings as plain values, for manifests and results; those that no published sampler has where used."""
    added = ("cache", "threshold", "factor")
    defaults = {field.name: field.default for field in fields(settings) if field.name in added}
    return {name: value for name, value in asdict(settings).items() if name not in defaults or value != defaults[name]}
