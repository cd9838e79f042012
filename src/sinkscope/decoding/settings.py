"""Sampling settings, one frozen record for each sampler. Defaults are those of the published sampling function.

This module loads without torch: the command line builds its flags from these records.
"""

from dataclasses import asdict, dataclass, fields, is_dataclass
from typing import Any, ClassVar, Literal

from sinkscope.decoding.setting_bounds import (
    LARGEST,
    check_not_negative,
    check_positive,
    check_scale,
    check_seed,
    check_share,
    check_top_p,
    nearest_divisor,
)
from sinkscope.documents import shown
from sinkscope.errors import CallError

ALGORITHMS = ("origin", "maskgit_plus", "topk_margin", "entropy")


class SettingsError(CallError, TypeError):
    """A setting that the sampler does not have; a TypeError, as for any unknown keyword argument."""


@dataclass(frozen=True)
class Settings:
    """Base of a sampler's settings.

    Attributes:
        length: tokens to write.
        follows_length: settings that take the value of ``length`` where only ``length`` is given.
    """

    length: int

    follows_length: ClassVar[tuple[str, ...]] = ("steps", "block")

    @property
    def most_calls(self) -> int:
        """The largest number of forward calls that a prompt takes."""
        parallel = getattr(self, "threshold", 0) or getattr(self, "factor", 0)
        return self.length if parallel else getattr(self, "steps", self.length)


@dataclass(frozen=True)
class LLaDASettings(Settings):
    """LLaDA's semi-autoregressive low-confidence remasking (ML-GSAI/LLaDA, generate.py).

    Attributes:
        length: tokens to write (published: ``gen_length``).
        steps: forward calls, shared evenly among the blocks.
        block: tokens of a block; blocks are finished one by one (published: ``block_length``).
        temperature: of the Gumbel noise; 0 takes the arg-max.
        guidance: unsupervised classifier-free guidance (published: ``cfg_scale``); 0 is none.
        remasking: which masked tokens are committed: the most confident ones, or random ones.
        logits_eos_inf: whether EOS is never predicted.
        confidence_eos_eot_inf: whether EOS and EoT are committed last (see the quirk in `llada`).
        seed: of the noise; row i of a batch draws from seed + i.
        block_order: right_to_left finishes the last block first; not published, a control for what follows the blocks.
        cache: which keys and values are kept from step to step; see `sinkscope.decoding.caches`. Not published, none computes everything.
        threshold: commits all masks of at least this probability in a step, and always the most probable one, however many steps that
            takes (Fast-dLLM); 0 commits a fixed number in each step.
        factor: commits the n most probable masks, for the largest n with (n + 1)(1 − p_n) below it (Fast-dLLM); 0 as above.
    """

    length: int = 128
    steps: int = 128
    block: int = 128
    temperature: float = 0.0
    guidance: float = 0.0
    remasking: Literal["low_confidence", "random"] = "low_confidence"
    logits_eos_inf: bool = False
    confidence_eos_eot_inf: bool = False
    seed: int = 0
    block_order: Literal["left_to_right", "right_to_left"] = "left_to_right"
    cache: str = "none"
    threshold: float = 0.0
    factor: float = 0.0

    def __post_init__(self) -> None:
        _blocks(self)


@dataclass(frozen=True)
class MMaDASettings(Settings):
    """MMaDA's text sampler: LLaDA's loop with confidences in float64, without the EOS switches (Gen-Verse/MMaDA, generate.py).

    Attributes:
        length: tokens to write (published: ``gen_length``).
        steps: forward calls, shared evenly among the blocks.
        block: tokens of a block; blocks are finished one by one (published: ``block_length``).
        temperature: of the Gumbel noise; 0 takes the arg-max.
        guidance: unsupervised classifier-free guidance (published: ``cfg_scale``); 0 is none.
        remasking: which masked tokens are committed: the most confident ones, or random ones.
        seed: of the noise; row i of a batch draws from seed + i.
        block_order: right_to_left finishes the last block first; not published, a control for what follows the blocks.
        cache: which keys and values are kept from step to step; see `sinkscope.decoding.caches`. Not published, none computes everything.
        threshold: commits all masks of at least this probability in a step, and always the most probable one, however many steps that
            takes (Fast-dLLM); 0 commits a fixed number in each step.
        factor: commits the n most probable masks, for the largest n with (n + 1)(1 − p_n) below it (Fast-dLLM); 0 as above.
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

    def __post_init__(self) -> None:
        _blocks(self)


@dataclass(frozen=True)
class DreamSettings(Settings):
    """Dream's sampler over the whole canvas (Dream-org/Dream-v0-Instruct-7B, generation_utils.py).

    The published function writes 20 tokens in 512 steps unless told otherwise, and so does this one.

    Attributes:
        length: tokens to write (published: ``max_new_tokens``).
        steps: forward calls; there may be more of them than tokens, some then commit nothing.
        temperature: divides the logits before a token is drawn; 0 takes the arg-max.
        top_p: choose among the smallest set of tokens whose probabilities reach it; 1 is all. It changes confidences also at temperature 0.
        top_k: choose among so many tokens; 0 is all. It changes confidences also at temperature 0.
        algorithm: which masks are committed first: random ones (origin), those with the most probable token (maskgit_plus), with the
            largest distance between the two best tokens (topk_margin), with the least entropy (entropy) (published: ``alg``).
        alg_temp: draws positions from softmax(confidence / alg_temp); 0 takes the most confident ones. Not used by origin.
        eps: the last of the time steps, which run evenly from 1.
        seed: of the draws; row i of a batch draws from seed + i.
        cache: which keys and values are kept from step to step; see `sinkscope.decoding.caches`. Not published, none computes everything.
        threshold: commits all masks of a block of at least this probability in a step, and always the most probable one (Fast-dLLM, with
            its cache); 0 commits by the algorithm.
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

    def __post_init__(self) -> None:
        check_positive(self, "length", "steps")
        check_share(self, "threshold")
        if self.threshold and not self.cache.startswith("fast-dllm"):
            raise CallError(
                f"threshold: expected Fast-dLLM's cache beside it, found cache {self.cache}; use --cache fast-dllm-dual:block=32"
            )
        check_not_negative(self, "top_k")
        check_scale(self, "temperature", "alg_temp")
        check_seed(self)
        check_top_p(self)
        if self.algorithm not in ALGORITHMS:
            raise CallError(
                f"algorithm: expected {', '.join(ALGORITHMS[:-1])} or {ALGORITHMS[-1]}, found {shown(self.algorithm)}"
            )
        if not 0 <= self.eps < 1:
            raise CallError(f"eps: expected a number from 0 to below 1, found {self.eps}")


@dataclass(frozen=True)
class SDARSettings(Settings):
    """SDAR's block diffusion behind a cache of finished blocks (JetAstra/SDAR, generate.py; defaults of its command).

    Attributes:
        length: tokens to write (published: ``gen_length``); the last block is written to its end.
        block: tokens of a block (published: ``block_length``); the models were trained with blocks of 4.
        block_steps: forward calls that denoise a block (published: ``denoising_steps``), which share its tokens evenly.
        temperature: divides the logits before a token is drawn; 0 takes the arg-max, as the published evaluation does.
        top_k: choose among so many tokens; 0 is all.
        top_p: choose among the smallest set of tokens whose probabilities reach it; 1 is all.
        remasking: which masks are committed (published: ``remasking_strategy``): those above the threshold, at least the step's share
            (dynamic, published: ``low_confidence_`` in front), the step's share of the most probable ones (static), or of the leftmost
            ones (sequential).
        threshold: of dynamic (published: ``confidence_threshold``).
        stop: whether writing stops after the block in which an answer ends (published: ``stopping_criteria_idx``).
        seed: of the draws; row i of a batch draws from seed + i.
    """

    length: int = 128
    block: int = 4
    block_steps: int = 4
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    remasking: Literal["dynamic", "static", "sequential"] = "dynamic"
    threshold: float = 0.85
    stop: bool = False
    seed: int = 0

    follows_length: ClassVar = ()
    replaces: ClassVar = True  # see the first quirk of sdar.py

    def __post_init__(self) -> None:
        _block_diffusion(self)
        known = ("dynamic", "static", "sequential")
        if self.remasking not in known:
            raise CallError(
                f"remasking: expected {', '.join(known[:-1])} or {known[-1]}, found {shown(self.remasking)}"
            )

    @property
    def most_calls(self) -> int:
        """One for the whole blocks of the prompt, and for each block that is touched its steps and the call that reads it."""
        return 1 + (-(-self.length // self.block) + 1) * (self.block_steps + 1)


@dataclass(frozen=True)
class LLaDA2Settings(Settings):
    """LLaDA 2's block diffusion, which is SDAR's with a threshold, other defaults and an end (``generate`` of modeling_llada2_moe.py).

    Attributes:
        length: tokens to write (published: ``gen_length``); the last block is written to its end.
        block: tokens of a block (published: ``block_length``).
        block_steps: forward calls that denoise a block (published: ``steps``), which share its tokens evenly.
        temperature: divides the logits before a token is drawn; 0 takes the arg-max.
        top_k: choose among so many tokens; 0 is all.
        top_p: choose among the smallest set of tokens whose probabilities reach it; 1 is all.
        threshold: all masks above this probability are committed, at least the step's share.
        stop: whether writing stops after the block in which an answer ends; the published code always does.
        seed: of the draws; row i of a batch draws from seed + i.
    """

    length: int = 2048
    block: int = 32
    block_steps: int = 32
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    threshold: float = 0.95
    stop: bool = True
    seed: int = 0

    follows_length: ClassVar = ()
    remasking: ClassVar = "dynamic"
    replaces: ClassVar = False
    most_calls = SDARSettings.most_calls

    def __post_init__(self) -> None:
        _block_diffusion(self)


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

    def __post_init__(self) -> None:
        check_positive(self, "length")
        check_not_negative(self, "top_k")
        check_scale(self, "temperature")
        check_seed(self)
        check_top_p(self)


BlockSettings = LLaDASettings | MMaDASettings
BlockDiffusionSettings = SDARSettings | LLaDA2Settings

ADDED = ("cache", "threshold", "factor")
"""Settings that no published sampler has; manifests and results name them only where they are used."""


def described(settings: Any) -> dict[str, Any]:
    """Return settings, those of a sampler or of a likelihood, as plain values, for manifests and results.

    Raises:
        CallError: something else.
    """
    if not is_dataclass(settings) or isinstance(settings, type):
        raise CallError(
            f"settings: expected those of a sampler, such as resolve_settings returns, found {type(settings).__name__}"
        )
    defaults = {field.name: field.default for field in fields(settings) if field.name in ADDED}
    return {name: value for name, value in asdict(settings).items() if name not in defaults or value != defaults[name]}


def check_type(name: str, value: Any, default: Any) -> None:
    """Raise an error where a setting is not of the type of its default.

    Raises:
        SettingsError: it is of another type.
    """
    fits = {bool: (bool,), int: (int,), float: (int, float), str: (str,)}[type(default)]
    if not isinstance(value, fits) or (isinstance(value, bool) and not isinstance(default, bool)):
        raise SettingsError(f"{name}: expected {type(default).__name__}, found {shown(value)}")


def _blocks(settings: BlockSettings) -> None:
    """Raise an error where settings of LLaDA or MMaDA do not fit together."""
    check_positive(settings, "length", "steps", "block")
    check_scale(settings, "temperature", least=0.0)  # the noise is scaled, not the logits
    check_not_negative(settings, "guidance")
    if settings.guidance > LARGEST:
        raise CallError(f"guidance: expected a number from 0 to {LARGEST:g}, found {settings.guidance:g}")
    check_seed(settings)
    if settings.length % settings.block:
        raise CallError(
            f"length must be a multiple of block: {settings.length} tokens do not split into blocks of {settings.block}; "
            f"try --block {nearest_divisor(settings.length, settings.block)}"
        )
    blocks = settings.length // settings.block
    if settings.steps % blocks:
        raise CallError(
            f"steps must be a multiple of the number of blocks: {settings.steps} steps do not share out among {blocks} blocks; "
            f"try --steps {max(1, round(settings.steps / blocks)) * blocks}"
        )
    if settings.steps > settings.length:
        raise CallError(
            f"steps must not exceed length: {settings.steps} steps for {settings.length} tokens would leave steps without a token"
        )
    if settings.remasking not in ("low_confidence", "random"):
        raise CallError(f"remasking: expected low_confidence or random, found {shown(settings.remasking)}")
    check_share(settings, "threshold", "factor")
    if settings.threshold and settings.factor:
        raise CallError(
            f"expected one of threshold and factor, found {settings.threshold} and {settings.factor}; set the other to 0"
        )
    if settings.cache != "none" and settings.guidance:
        raise CallError(
            f"cache {settings.cache}: does not go with guidance {settings.guidance}, whose unconditional half no published cache keeps; "
            "use --guidance 0 or --cache none"
        )
    if settings.block_order not in ("left_to_right", "right_to_left"):
        raise CallError(f"block_order: expected left_to_right or right_to_left, found {shown(settings.block_order)}")


def _block_diffusion(settings: BlockDiffusionSettings) -> None:
    """Raise an error where settings of SDAR or LLaDA 2 do not fit together."""
    check_positive(settings, "length", "block", "block_steps")
    check_not_negative(settings, "top_k")
    check_scale(settings, "temperature")
    check_share(settings, "threshold")
    check_seed(settings)
    check_top_p(settings)
    if settings.block_steps > settings.block:
        raise CallError(
            f"block_steps must not exceed block: {settings.block_steps} steps for blocks of {settings.block} tokens would leave steps "
            f"without a token; try --block-steps {settings.block}"
        )
