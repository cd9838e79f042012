"""sinkscope's models in lm-evaluation-harness, as its model ``sinkscope``, with lm-eval's own options:

    python -m sinkscope.evaluation.lm_eval --model sinkscope \
        --model_args pretrained=GSAI-ML/LLaDA-8B-Instruct,length=256,block=32,hide=top:1 --tasks gsm8k
        --apply_chat_template

lm-eval 0.4.13 does not read the entry point that we declare, so this module is run instead. It also provides
``sinkscope_humaneval`` and ``sinkscope_humaneval_instruct``, with pass@k in our sandbox. The effect of a rule is in
lm-eval's results, under ``config``.
"""

import json
import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model

from sinkscope.decoding import Settings, generate, log_likelihood, resolve_settings, settings_of
from sinkscope.errors import CallError, SinkscopeError
from sinkscope.evaluation.choices import settings_for
from sinkscope.evaluation.results import mean_of
from sinkscope.evaluation.running import answer_until, effect_on, reseeded
from sinkscope.interventions import parse_rule
from sinkscope.models import Model, load
from sinkscope.models.devices import own_device
from sinkscope.progress import show_progress
from sinkscope.runs.folder import share_of_process

LENGTH = 256
LENGTH_NAMES = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
TASKS = Path(__file__).parent / "lm_eval_tasks"
PATIENCE = timedelta(days=14)  # that the first process waits for the last
_log = logging.getLogger(__name__)


@register_model("sinkscope")
class SinkscopeLM(TemplateLM):
    """A model of sinkscope for lm-eval, with or without hidden keys.

    ``hide``: a rule, semicolons for commas, at which lm-eval splits; ``batch_size``: of prompts or masked canvases;
    ``method``, ``samples``, ``likelihood_guidance``: see `LikelihoodSettings`; ``settings``: override a task's own.
    """

    def __init__(
        self,
        pretrained: str | Model,
        *,
        hide: str = "none",
        device: str | None = None,
        dtype: str | None = None,
        batch_size: int | str = 1,
        max_batch_size: int | None = None,
        method: str = "monte_carlo",
        samples: int = 128,
        likelihood_guidance: float = 0.0,
        **settings: Any,
    ) -> None:
        super().__init__()
        self.share = share_of_process()
        device = own_device(("cuda" if torch.cuda.is_available() else "cpu") if device is None else device)
        self.model = pretrained if isinstance(pretrained, Model) else load(pretrained, dtype=dtype, device=device)
        self.tokenizer, self._device = self.model.tokenizer, self.model.device
        self.hide = hide.replace(";", ",")
        self.rule = parse_rule(self.hide)
        self.batch, self.settings = int(batch_size), settings
        family = self.model.family
        waiting = () if "length" in settings else settings_of(family.sampler).follows_length  # for the length of a task
        resolve_settings(family, **{name: one for name, one in settings.items() if name not in waiting})
        given = {"method": method, "samples": samples, "guidance": likelihood_guidance, "seed": settings.get("seed", 0)}
        self.likelihood = asdict(settings_for(given, {}, family, self.model.card.name))
        self._effects: list[dict[str, Any]] = []
        self._said_greedy = False

    @property
    def eot_token_id(self) -> int | None:
        """The token that ends a text; lm-eval also puts it in front of a text without context."""
        return self.model.card.eos_id

    @property
    def tokenizer_name(self) -> str:
        return self.model.card.name.replace("/", "__")

    def get_model_info(self) -> dict[str, Any]:
        """Return the rule and its mean effect on the answers and likelihoods of all processes, for its results."""
        return {"hide": self.hide, "effects": len(self._effects), **_means(self._effects)}

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        begun = chat_history[-1]["role"] == "assistant"
        return self.model.chat_text(chat_history, begun=begun, instead="leave out --apply_chat_template")

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        bos = self.tokenizer.bos_token
        if add_special_tokens is None:
            add_special_tokens = not (bos and string.startswith(bos))
        return self.model.tokenize(string, add_special_tokens)

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        arguments: list[Any] = [request.args for request in requests]
        groups: dict[str, list[int]] = {}
        for index, (_, asked) in enumerate(arguments):
            groups.setdefault(json.dumps(asked, sort_keys=True, default=str), []).append(index)
        for indices in groups.values():
            self._settings(arguments[indices[0]][1])  # refuses a task's arguments before anything is written
        batches = [
            indices[at : at + self.batch] for indices in groups.values() for at in range(0, len(indices), self.batch)
        ]

        def write(indices: Sequence[int]) -> list[tuple[str, Any]]:
            settings, stops = self._settings(arguments[indices[0]][1])
            settings = reseeded(settings, indices[0])
            prompts = [self.model.encode(self.tok_encode(arguments[index][0])) for index in indices]
            with self.rule(self.model) as running:
                generations = generate(self.model, prompts, **asdict(settings))
            texts = [answer_until(self.model, one.tokens[one.prompt_length :], stops) for one in generations]
            return [(text, effect_on(self.rule, running, row)) for row, text in enumerate(texts)]

        answers = self._spread(batches, write, "generate_until", disable_tqdm)
        for request, answer in zip(requests, answers, strict=True):
            self.cache_hook.add_partial("generate_until", request.args, answer)
        return answers

    def _settings(self, asked: dict[str, Any]) -> tuple[Settings, list[str]]:
        """Return a task's generation arguments as settings of the sampler, and its stop strings."""
        asked = dict(asked or {})
        until = asked.pop("until", None) or []
        stops = [until] if isinstance(until, str) else list(until)
        lengths = [found for name in LENGTH_NAMES if (found := asked.pop(name, None)) is not None]
        sampling, temperature = asked.pop("do_sample", None), asked.pop("temperature", None)
        temperature = 0.0 if sampling is False or temperature is None else float(temperature)
        asked |= {"length": int([*lengths, LENGTH][0]), "temperature": temperature, **self.settings}
        return resolve_settings(self.model.family, **asked), stops

    def _loglikelihood_tokens(self, requests: list[Any], disable_tqdm: bool = False, **kwargs: Any) -> list[Any]:
        found = self._scores([(context, continuation) for _, context, continuation in requests], disable_tqdm)
        for request, one in zip(requests, found, strict=True):
            self.cache_hook.add_partial("loglikelihood", request[0], one)
        return found

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        texts = [self.tok_encode(request.args[0], add_special_tokens=False) for request in requests]
        begin: Any = [self.eot_token_id]
        found = [total for total, _ in self._scores([(begin, text) for text in texts], disable_tqdm)]
        for request, total in zip(requests, found, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, total)
        return found

    def _scores(self, pairs: Sequence[tuple[list[int], list[int]]], quiet: bool) -> list[tuple[float, bool]]:
        batches = [[index] for index in range(len(pairs))]
        return self._spread(batches, lambda one: self._score(*pairs[one[0]]), "likelihood", quiet)

    def _score(self, context: list[int], continuation: list[int]) -> list[tuple[tuple[float, bool], Any]]:
        with self.rule(self.model) as running:
            found = log_likelihood(self.model, context, continuation, **self.likelihood, batch=self.batch)
        if found.greedy is None and not self._said_greedy:
            self._said_greedy = True
            unsaid = "whether a text is the greedy one; measures of that need method=chain_rule"
            _log.warning("Monte Carlo does not say %s", unsaid)
        return [((found.total, bool(found.greedy)), effect_on(self.rule, running))]

    def _spread(self, batches: list[list[int]], work: Callable[..., list[Any]], name: str, quiet: bool) -> list[Any]:
        """Return the results by request; each process does every ``count``-th batch, and all get all results."""
        done: dict[int, tuple[Any, Any]] = {}
        failed: Exception | None = None
        mine = batches[self.share.index :: self.share.count]
        try:
            with show_progress(len(mine), name, "batches", shown=not quiet and not self.share.index) as bar:
                for indices in mine:
                    done |= zip(indices, work(indices), strict=True)
                    bar.advance()
        except Exception as error:
            failed = error
        if self.share.count > 1:
            if not torch.distributed.is_initialized():
                torch.distributed.init_process_group("gloo", timeout=PATIENCE)
            every: list[Any] = [None] * self.share.count
            torch.distributed.all_gather_object(every, (done, failed and str(failed)))
            for other, message in every:
                done |= other
                if message is not None and failed is None:
                    failed = SinkscopeError(f"another process failed: {message}")
        if failed is not None:
            raise failed
        came = [effect for index in sorted(done) if (effect := done[index][1]) is not None]
        self._effects += came
        if came and self.share.index == 0:
            means = {name: value for name, value in _means(came).items() if value is not None}
            said = ", ".join(f"{name} {value:.4g}" for name, value in means.items())
            _log.warning("%s: %s", self.hide, said)
        return [done[index][0] for index in sorted(done)]


def _means(effects: Sequence[dict[str, Any]]) -> dict[str, Any]:
    names = ("removed_share", "removed_share_committed", "hit_rate", "keys_per_head")
    return {name: mean_of(effect[name] for effect in effects) for name in names}


def main() -> None:
    """Run lm-eval's command line with the model ``sinkscope`` known to it."""
    from lm_eval.__main__ import cli_evaluate

    if "--tasks" in sys.argv and "--include_path" not in sys.argv:
        sys.argv += ["--include_path", str(TASKS)]
    runs = sys.argv[1:2] == ["run"] or (sys.argv[1:2] and sys.argv[1].startswith("-"))
    if runs and not any(one.split("=")[0] in ("--device", "--config", "-C") for one in sys.argv):
        # lm-eval's default is the first GPU, even if there is none and for every process of torchrun.
        sys.argv += ["--device", "cuda" if torch.cuda.is_available() else "cpu"]
    try:
        cli_evaluate()
    except SinkscopeError as error:
        print(f"sinkscope: error: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, CallError) else 1)
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
