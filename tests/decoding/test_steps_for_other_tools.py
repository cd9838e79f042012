"""The example of docs/any-model.md for other tools runs unchanged, and what it shows belongs to the step it names."""

import re
from pathlib import Path

import torch

import sinkscope

EXAMPLE = Path(__file__).parents[2] / "docs/examples/steps_for_other_tools.py"


def test_the_example_runs_and_shows_the_call_of_each_step(capsys, tmp_path, monkeypatch):
    names = {"__name__": "example"}
    monkeypatch.chdir(tmp_path)
    exec(compile(EXAMPLE.read_text(), str(EXAMPLE), "exec"), names)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 17 and [row[0] for row in names["rows"]] == list(range(16))
    model, seen = names["model"], names["seen"]
    with sinkscope.recording(model, out="run.trace"):
        sinkscope.generate(model, names["prompt"], length=16, steps=16, block=16)
    trace = sinkscope.open_trace("run.trace")
    handle = model.network.model.layers[3].register_forward_hook(names["see"])
    for step, (_, tokens, _, mean) in enumerate(names["rows"]):
        written = trace.written[step][trace.written[step] >= 0].tolist()
        assert tokens == " ".join(model.tokenizer.convert_ids_to_tokens(written))
        with torch.no_grad():
            model.network(torch.as_tensor(trace.tokens[step].astype("int64"))[None])
        assert abs(float(seen["residual"][0].norm(dim=-1).mean()) - mean) < 1e-2 * mean, "the norms of another step"
    handle.remove()


def test_the_page_names_it():
    assert re.search(r"\(examples/steps_for_other_tools.py\)", (EXAMPLE.parents[1] / "any-model.md").read_text())
