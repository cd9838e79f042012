"""`demo`, `trace`: a model writes, and is recorded."""

import dataclasses
import json
from pathlib import Path
from typing import Any, Literal

from tyro.conf import Positional

from sinkscope.commands.mapping import read_places, write_maps
from sinkscope.commands.shown import Json, given_flags, note, print_json
from sinkscope.errors import CallError


def demo(out: Path = Path("demo-output"), problems: int = 3, length: int = 64, block: int = 16) -> None:
    """Bundled models: trace, sinks, tracks, figures and a page.

    Args:
        out: a new or empty folder.
        problems: held-out problems each model is traced on: the first ones with three operations.
        length: tokens to write.
        block: tokens of a block of the diffusion sampler.
    """
    from sinkscope.demo import run_demo

    page = run_demo(out, problems=problems, length=length, block=block, say=note)
    print(page)


def trace(
    model: Positional[str],
    out: Path,
    prompt: str | None = None,
    prompts: Path | None = None,
    problem: int | None = None,
    hide: str = "none",
    device: str = "cpu",
    dtype: str | None = None,
    keep: Literal["columns", "top", "statistics"] = "columns",
    top: int = 8,
    keep_maps: str | None = None,
    as_json: Json = False,
    sampler: Any = None,
) -> None:
    """Writes with a model and records where attention goes at every step, layer and head.

    Args:
        model: a bundled name, a folder, or a hub id.
        out: a new or empty folder for the trace.
        prompt: raw text. (default: none)
        prompts: a file of JSON lines with a "prompt" each; makes numbered traces. (default: none)
        problem: number of a held-out problem of the lab, with its shots. (default: 0 for a bundled model without a prompt)
        hide: a rule such as top:1, random:1@seed=2, above:3, window:4+64; options behind @ as in top:1@current,last_row.
        device: cpu, cuda, cuda:1 …
        dtype: float32, bfloat16 or float16. (default: the stored one)
        keep: columns (everything), top (the largest of each head), statistics (over all prompts; goes on after a kill, torchrun shares it).
        top: how many columns of each head are kept with --keep top.
        keep_maps: single attention maps to store as well, as step:layer:head, separated by commas. (default: none)
    """
    import sinkscope
    from sinkscope.models import BUNDLED

    given = [name for name, value in (("--prompt", prompt), ("--prompts", prompts), ("--problem", problem)) if value is not None]
    if len(given) > 1:
        raise CallError(f"expected one of --prompt, --prompts and --problem, found {' and '.join(given)}")
    if not given and model not in BUNDLED:
        raise CallError(f"expected --prompt TEXT, --prompts FILE or --problem N for {model}")
    if keep_maps is not None and keep == "statistics":
        raise CallError("--keep-maps needs a trace: use --keep columns or --keep top")
    rule = sinkscope.parse_rule(hide)
    if keep_maps is not None and not rule.idle:
        raise CallError(f"--keep-maps with --hide {hide}: maps are recomputed without hiding; leave one of the two out")
    texts = _prompts(prompt, prompts, problem)
    loaded = sinkscope.load(model, dtype=dtype, device=device)
    from tqdm import tqdm

    from sinkscope.decoding import make_batch, resolve_settings, step_count

    settings = resolve_settings(loaded.family, **given_flags(sampler))
    for text in texts:  # every prompt is checked before the first is written
        make_batch(loaded, [loaded.encode(text)], [text], settings.length)
    if keep == "statistics":
        from sinkscope.commands.counting import count_prompts

        count_prompts(loaded, texts, out, settings, as_json, hide)
        return
    places = [] if keep_maps is None else read_places(keep_maps, loaded.card.layers, loaded.card.heads)
    generations = []
    total = step_count(settings) * len(texts)
    with (
        tqdm(total=total, desc="steps", unit="step", disable=None) as bar,
        sinkscope.recording(loaded, out=out, numbered=prompts is not None, keep=keep, top=top) as recorder,
        rule(loaded) as hiding,
    ):
        for text in texts:
            generations.append(sinkscope.generate(loaded, text, on_step=lambda _: bar.update(), **dataclasses.asdict(settings)))
    write_maps(loaded, recorder.folders, places)
    folders = [str(folder) for folder in recorder.folders]
    if as_json:
        rows = [{"trace": f, "text": g.text, "steps": g.steps} for f, g in zip(folders, generations, strict=True)]
        print_json({"traces": rows} if rule.idle else {"traces": rows, "hide": hide, **hiding.effect.as_dict()})
        return
    for folder, generation in zip(folders, generations, strict=True):
        print(f"{folder}: {generation.steps} steps\n{generation.text}")
    if not rule.idle:
        note(hiding.effect.sentence(hide))


def _prompts(prompt: str | None, prompts: Path | None, problem: int | None) -> list[str]:
    if prompt is not None:
        return [prompt]
    if prompts is not None:
        return _read_prompts(prompts)
    from sinkscope.lab.prompts import problem_prompt

    return [problem_prompt("lab-arith", problem or 0)["prompt"]]


def _read_prompts(path: Path) -> list[str]:
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise CallError(f"--prompts {path}: cannot be read ({error})") from error
    found = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise CallError(f"--prompts {path}, line {number}: expected JSON, found {line[:60]!r}") from error
        if not isinstance(row, dict) or not isinstance(row.get("prompt"), str):
            raise CallError(f'--prompts {path}, line {number}: expected an object with a "prompt" text, found {line[:60]!r}')
        found.append(row["prompt"])
    if not found:
        raise CallError(f'--prompts {path}: expected lines like {{"prompt": "…"}}, found none')
    return found
