"""`trace`: records a model while it writes."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import sinkscope
from sinkscope import decoding, models
from sinkscope.commands.command import Command, Dtype, Json, ModelName, Overwrite, SamplerFlags, Switch, default_is
from sinkscope.commands.output import note, print_json, say
from sinkscope.counts import counted
from sinkscope.errors import CallError, TraceError
from sinkscope.progress import show_progress
from sinkscope.runs.files import numbered, parse_json, read_text
from sinkscope.runs.folder import claimed_folder, expect_one_process, share_of_process

Prompt = str | list[dict[str, str]]  # a text, or the messages of a conversation
MOST_COLUMNS = 256 * 10**6  # bytes of a trace from which ``--keep auto`` keeps the largest columns only


@dataclass(frozen=True, kw_only=True)
class Trace(Command):
    """Generate an answer and record the attention of every step, layer and head.

    Attributes:
        out: a new or empty folder for the trace.
        prompt: the text of the prompt.
        prompts: a file of JSON lines, each with a "prompt" or with "messages"; makes numbered traces.
        problem: number of a held-out problem of the lab; its shots are added.
        chat: puts --prompt, or each "prompt" of --prompts, into the model's chat template; "messages" always are.
        system: the system message of --chat.
        name: the model's label in files and figures.
        hide: a rule such as top:1, random:1@seed=2, above:3, window:4+64; options behind @ as in
            top:1@current,last_row.
        device: cpu, cuda, cuda:1 …
        keep: columns (all), top (the largest of each head), auto (columns, or top for a trace beyond 256 MB),
            statistics (over all prompts; resumes after a kill, torchrun divides them), drift (how far keys and values
            move between steps, with a figure).
        top: number of columns of each head that top keeps.
        keep_maps: attention maps to store as well, as step:layer:head, separated by commas.
    """

    model: ModelName
    out: Path
    prompt: Annotated[str | None, default_is("none")] = None
    prompts: Annotated[Path | None, default_is("none")] = None
    problem: Annotated[int | None, default_is("0 for a bundled model without a prompt")] = None
    chat: Switch = False
    system: Annotated[str | None, default_is("none")] = None
    name: Annotated[str | None, default_is("as MODEL is written")] = None
    hide: str = "none"
    device: str = "cpu"
    dtype: Dtype = None
    keep: Literal["auto", "columns", "top", "statistics", "drift"] = "auto"
    top: int = 8
    keep_maps: Annotated[str | None, default_is("none")] = None
    overwrite: Overwrite = False
    json: Json = False
    sampler: SamplerFlags

    def run(self) -> None:
        from sinkscope.models.devices import own_device

        if self.keep != "statistics":
            expect_one_process("trace without --keep statistics")
        rule = sinkscope.parse_rule(self.hide)
        self._check_flags(rule)
        given = list(self._read_prompts())
        if self.keep in ("statistics", "drift"):
            first: dict[str, str] = {}  # a prompt given twice would make intervals narrower than they are
            for where, prompt in given:
                if (earlier := first.setdefault(str(prompt), where)) != where:
                    line = earlier.rpartition(", ")[2].rstrip(": ")
                    raise CallError(f"{where}expected each prompt once, found that of {line} again; leave it out")
        model = sinkscope.load(self.model, dtype=self.dtype, device=own_device(self.device))
        if self.name is not None:
            model = replace(model, card=replace(model.card, name=self.name))
        settings = decoding.resolve_settings(model.family, **self.sampler)
        raw = any(isinstance(prompt, str) for _, prompt in given) and not models.is_bundled(self.model)
        if raw and getattr(model.tokenizer, "chat_template", None):
            note(f"{self.model} has a chat template, which --chat applies; without it a chat model may say nothing")
        prompts, longest = list[Any](), 0
        for where, prompt in given:  # every prompt is checked before the first is written
            try:
                encoded = model.encode(prompt) if isinstance(prompt, str) else model.chat(prompt)
                decoding.make_batch(model, [encoded], [None], settings.length)
                prompts.append(prompt if isinstance(prompt, str) else encoded)
            except CallError as error:
                raise CallError(f"{where}{error}") from error
            canvas, longest = len(encoded) + (1 if model.family.causal else settings.length), max(longest, len(encoded))
            if canvas < rule.least_tokens:
                needs = f"--hide {self.hide} needs a canvas of at least {rule.least_tokens} tokens"
                raise CallError(f"{where}{needs}, found {canvas}: choose fewer keys")
        if self.keep == "statistics":
            return self._record_statistics(model, prompts, settings)
        if self.keep == "drift":
            return self._record_drift(model, prompts, settings, rule)
        size, keep = trace_size(model, longest, settings), self.keep
        if keep == "auto":
            keep = "columns" if size <= MOST_COLUMNS else "top"
            if keep == "top":
                all_of_them = f"all columns may take {size / 1e6:,.0f} MB a trace (--keep columns)"
                note(f"keeping the {counted(self.top, 'largest column')} of each head: {all_of_them}")
        self._record(model, prompts, settings, rule, keep)

    def _check_flags(self, rule: Any) -> None:
        if self.keep not in ("top", "auto"):
            self.refuse("top", "without --keep top")
        if not self.chat:
            self.refuse("system", "without --chat")
        if self.keep in ("statistics", "drift"):
            self.refuse("keep_maps", "without a trace")
        if not rule.idle or self.sampler.get("cache", "none") != "none":
            self.refuse("keep_maps", "with --hide and --cache: maps are recomputed without them")
        models.check_name(self.model)
        flags = {"--prompt": self.prompt, "--prompts": self.prompts, "--problem": self.problem}
        given = [flag for flag, value in flags.items() if value is not None]
        if len(given) > 1 or (not given and not models.is_bundled(self.model)):
            found = " and ".join(given) or "none"
            raise CallError(f"expected one of --prompt TEXT, --prompts FILE and --problem N, found {found}")

    def _read_prompts(self) -> Iterable[tuple[str, Prompt]]:
        """Return each prompt behind its place, which begins messages about it; with --chat as messages."""
        if self.prompt is None and self.prompts is None:
            from sinkscope.lab.prompts import problem_prompt, task_of

            return [("", problem_prompt(task_of(self.model), self.problem or 0)["prompt"])]
        given = [("", str(self.prompt))] if self.prompts is None else numbered_prompts(self.prompts)
        if not self.chat:
            return given
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        chats = ((place, one, [*system, {"role": "user", "content": one}]) for place, one in given)
        return [(place, chat if isinstance(one, str) else one) for place, one, chat in chats]

    def _generate(
        self, model: Any, prompts: Sequence[Any], settings: Any, rule: Any, keep: Any, **recording: Any
    ) -> tuple[Any, Any, list[Any]]:
        """Generate and record the answers; return the recorder, the effect of the rule, and the generations."""
        with (
            show_progress(settings.most_calls * len(prompts), self.model, "steps") as bar,
            sinkscope.recording(model, out=self.out, keep=keep, overwrite=self.overwrite, **recording) as recorder,
            rule(model) as hiding,
        ):
            if recording.get("numbered"):
                recorder.prompts_asked = len(prompts)
            how = {"on_step": lambda _: bar.advance(), **asdict(settings)}
            return recorder, hiding, [sinkscope.generate(model, prompt, **how) for prompt in prompts]

    def _record(self, model: Any, prompts: Sequence[Any], settings: Any, rule: Any, keep: str) -> None:
        from sinkscope.interventions.intervention import canonical_rule

        hide, places = canonical_rule(self.hide), [] if self.keep_maps is None else read_places(self.keep_maps)
        kept = {"numbered": self.prompts is not None, "top": self.top}
        recorder, hiding, generations = self._generate(model, prompts, settings, rule, keep, **kept)
        keep_maps(model, recorder.folders, places)
        shown = [str(self.out / folder.relative_to(self.out.absolute())) for folder in recorder.folders]
        written = list(zip(shown, generations, strict=True))
        if self.json:
            rows = [{"trace": folder, "text": one.text, "steps": one.steps} for folder, one in written]
            effect = {} if rule.idle else {"hide": hide, **hiding.effect.as_dict()}
            return print_json({"traces": rows, **effect})
        for folder, generation in written:
            ended = "" if generation.text else ", an empty answer: it ended with its first token"
            say(f"{folder}: {counted(generation.steps, 'step')}{ended}\n{generation.text}")
        if not rule.idle:
            note(hiding.effect.sentence(hide))

    def _record_drift(self, model: Any, prompts: Sequence[Any], settings: Any, rule: Any) -> None:
        from sinkscope.figures.run_figures import draw_drift
        from sinkscope.recorder.drift_recorder import drift_table
        from sinkscope.traces.format import DRIFT

        self._generate(model, prompts, settings, rule, self.keep)
        document = json.loads((self.out / DRIFT).read_bytes())
        for path in draw_drift(document).save(self.out):
            note(str(path))
        print_json(document) if self.json else say(drift_table(document))

    def _record_statistics(self, model: Any, prompts: Sequence[Any], settings: Any) -> None:
        """Add the prompts of this process to a folder of statistics; the process that completes it says so."""
        from sinkscope.traces import read_statistics
        from sinkscope.traces.writing import room_in

        share = share_of_process()
        alone = share.count == 1
        if not alone:
            self.refuse("overwrite", "by several processes of torchrun")
        recorded = [self.out / name for name in ("statistics.safetensors", "items")]
        with (
            claimed_folder(self.out, TraceError) if alone else nullcontext(),  # torchrun's add to one folder together
            room_in(self.out, True, lambda: any(one.exists() for one in recorded)) if self.overwrite else nullcontext(),
        ):
            if not add_prompts(model, prompts, self.out, settings, self.hide):
                note(f"{self.out}: process {share.index} of {share.count} did its prompts; another one still has some")
                return
        manifest, _, _ = read_statistics(self.out)
        if self.json:
            print_json({"statistics": str(self.out), "prompts": manifest["prompts"], "complete": manifest["complete"]})
        else:
            say(f"{self.out}: statistics of {counted(manifest['prompts'], 'prompt')}")


def trace_size(model: Any, prompt: int, settings: Any) -> int:
    """Return how many bytes a trace of all columns takes at most, for a prompt of so many tokens."""
    card, causal = model.card, model.family.causal
    keys = prompt + (settings.length // 2 if causal else settings.length)  # a causal canvas grows
    tensors = card.heads * (4 if causal else 5) + 2 * card.kv_heads + 1  # columns, self-attention, norms
    return 4 * settings.most_calls * card.layers * tensors * keys


def add_prompts(model: Any, prompts: Sequence[Any], out: Path, settings: Any, hide: str = "none") -> bool:
    """Generate answers to the prompts of this process under a rule, each alone, and add the statistics of those that
    are missing to a folder; return whether this process is the one that reports the complete folder.
    """
    from sinkscope.interventions.intervention import canonical_rule
    from sinkscope.models.fingerprints import fingerprints
    from sinkscope.recorder.destinations import StatisticsDestination, merge_statistics
    from sinkscope.recorder.levels import recording_to
    from sinkscope.traces.statistics_folder import StatisticsFolder

    mine, hide = share_of_process(), canonical_rule(hide)
    rule = sinkscope.parse_rule(hide)
    with rule(model):  # which says what does not fit before anything is made
        pass
    identity = {
        **fingerprints(model),
        "weight_hash": model.card.weight_hash,
        "dtype": model.card.dtype,
        "sampler": {"name": model.family.sampler, **decoding.described(settings)},
        "hide": hide,
        "prompts_sha256": hashlib.sha256(json.dumps(prompts).encode()).hexdigest(),
    }
    folder = StatisticsFolder(out, identity, merge_statistics, len(prompts))
    share = range(mine.index, len(prompts), mine.count)
    missing = [index for index in share if not folder.done(index)]
    if len(missing) < len(share):
        note(f"{out}: {len(share) - len(missing)} prompts are done already")
    completed = folder.fold()  # prompts that a killed process left
    with rule(model) as hiding, show_progress(settings.most_calls * len(missing), model.card.name, "steps") as bar:
        for index in missing:
            destination = StatisticsDestination(folder, [index])
            with recording_to(model, destination):
                sinkscope.generate(model, prompts[index], on_step=lambda _: bar.advance(), **asdict(settings))
            completed = completed or destination.completed_the_folder
    if missing and not rule.idle:
        note(hiding.effect.sentence(hide))
    return completed or (not missing and mine.index == 0)


def read_prompts(path: Path) -> list[str]:
    """Return the prompts of a file; raise CallError for a conversation."""
    return [str(prompt) for _, prompt in numbered_prompts(path, str)]


def numbered_prompts(path: Path, kind: Any = str | list) -> Iterator[tuple[str, Prompt]]:
    """Yield the prompts of a file of JSON lines, plain or in gzip, each behind its line; raise CallError for others."""
    for number, line in numbered(read_text(path, CallError, "expected --prompts as JSON lines")):
        where = f"--prompts {path}, line {number}: "
        row = parse_json(line, where.removesuffix(": "), CallError)
        found = row.get("messages", row.get("prompt")) if isinstance(row, dict) else None
        if not isinstance(found, kind) or not found:
            raise CallError(f'{where}expected an object with a "prompt" text or "messages", found {line[:60]!r}')
        yield where, found


def read_places(text: str) -> list[tuple[int, int, int]]:
    """Return the places that ``step:layer:head,…`` names."""
    try:
        return [(step, layer, head) for step, layer, head in (map(int, one.split(":")) for one in text.split(","))]
    except ValueError as error:
        raise CallError(f"--keep-maps: expected step:layer:head, separated by commas, found {text!r}") from error


def keep_maps(model: Any, folders: Sequence[Path], places: Sequence[tuple[int, int, int]]) -> None:
    """Store single maps with traces."""
    from sinkscope.recorder.attention_map import recompute_map
    from sinkscope.traces.stored_maps import check_place, store_map

    for folder in folders:
        trace = sinkscope.open_trace(folder)
        for place in places:
            if place[0] >= trace.steps:  # an autoregressive answer may end earlier
                note(f"{folder}: no map of step {place[0]}, the trace has {counted(trace.steps, 'step')}")
                continue
            step, layer, head = check_place(trace, *place)
            store_map(trace, step, layer, head, recompute_map(model, trace, step, layer, head).attention)
