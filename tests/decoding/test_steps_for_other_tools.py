"""The examples of docs/any-model.md for other tools run unchanged, and what they show belongs to the step they name.

TransformerLens 4.3.0 and nnsight 0.8.1 are no dependencies: where one is missing, its test is skipped.
"""

import re
from pathlib import Path

import pytest
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


def layers_of_tokens(prompt):
    """For each token of a generation the step, the token, and the layer from which it is the first choice, by torch's
    own hooks.
    """
    model = sinkscope.load("lab-diffusion")
    layers, seen, rows = model.network.model.layers, {}, []
    for number, layer in enumerate(layers):
        layer.register_forward_hook(
            lambda module, arguments, output, number=number: seen.__setitem__(number, output[0])
        )

    def on_step(step):
        for place in (step.written[0] >= 0).nonzero().flatten().tolist():
            token, stack = int(step.written[0, place]), [seen[number][place] for number in range(len(layers))]
            chosen = [int(model.network.lm_head(model.network.model.norm(one)).argmax()) == token for one in stack]
            rows.append(
                (step.number, token, max((number + 1 for number, same in enumerate(chosen) if not same), default=0))
            )

    with torch.no_grad():
        sinkscope.generate(model, prompt, length=16, steps=16, block=16, on_step=on_step)
    return rows


@pytest.mark.parametrize("tool", ["transformer_lens", "nnsight"])
def test_another_tool_sees_what_our_hooks_see(tool, tmp_path, monkeypatch, capsys):
    pytest.importorskip(
        tool, reason=f"{tool}, which this example is for, is not installed: pip install {tool.replace('_', '-')}"
    )
    path, names = EXAMPLE.with_name(f"steps_with_{tool}.py"), {"__name__": "example"}
    monkeypatch.chdir(tmp_path)
    exec(compile(path.read_text(), str(path), "exec"), names)
    assert names["rows"] == layers_of_tokens(names["prompt"])
    assert len({layer for _, _, layer in names["rows"]}) > 3, "the layers say nothing"
    assert len(capsys.readouterr().out.splitlines()) == 17


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLE.parent.glob("steps_*.py")))
def test_the_page_names_it(name):
    assert re.search(rf"\(examples/{name}\)", (EXAMPLE.parents[1] / "any-model.md").read_text())
