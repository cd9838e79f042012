"""`evaluate` on tiny random models: prompts, kept items, resumption after a kill, and every refusal."""

import json
import shutil

import pytest
import torch
from processes import without

import sinkscope
from sinkscope.decoding import Generation
from sinkscope.errors import CallError
from sinkscope.evaluation import evaluate, read_results, running
from sinkscope.evaluation.tables import compare
from sinkscope.interventions import HidePositions, HideTopSinks, KeepWindow
from sinkscope.lab.prompts import few_shot_prompt, held_out

SMALL = {"tasks": ["lab-arith"], "limit": 6, "shots": 1, "batch": 4, "settings": {"length": 8}, "progress": False}


@pytest.fixture
def answers(monkeypatch):
    """Replaces the model: the worked answer for every third problem, nonsense else; returns the prompts it was
    asked."""
    asked, worked = [], {}
    for task in ("lab-arith", "lab-code"):
        for index, problem in enumerate(held_out(task)[:40]):
            for shots in (0, 1):
                worked[few_shot_prompt(problem, index, shots)] = "I do not know" if index % 3 else problem.worked

    def generate(model, prompts, **settings):
        texts = [model.decode(prompt) for prompt in prompts]
        asked.append(texts)
        return [
            Generation(torch.tensor([*prompt, 1, 2]), worked[text], 2, len(prompt))
            for prompt, text in zip(prompts, texts, strict=True)
        ]

    monkeypatch.setattr(running, "generate", generate)
    return asked


def test_rules_are_given_as_texts_or_objects(autoregressive, tmp_path):
    """A window for the answer's queries is a cache that drops keys; an own rule without a text has a folder too."""
    own = type("Own", (HidePositions,), {"rule": "", "__doc__": "Without a text."})((0,))
    rules = ["none", KeepWindow(1, 4, queries="answer"), own, "position:900"]
    found = evaluate(autoregressive, out=tmp_path / "a", hide=rules, **SMALL)
    assert [one.hide for one in found] == ["none", "window:1+4@queries=answer", repr(own), "position:900"]
    assert found[1].removed_share > 0 < found[2].removed_share and found[1].without_effect == ()
    assert found[3].without_effect == ("position:900 hid nothing: no such key was there for its queries",)
    (text,) = evaluate(autoregressive, out=tmp_path / "b", hide=["window:1+4@queries=answer"], **SMALL)
    assert text.removed_share == found[1].removed_share and read_results(tmp_path / "a") == found


def contents(folder):
    """Every file of an evaluation but for times: results.json byte by byte."""
    files = {}
    for path in sorted(folder.rglob("*.json")):
        content = json.loads(path.read_text())
        text = json.dumps(content, ensure_ascii=False, indent=1) + "\n"
        assert path.read_text() == text  # so that comparing what is left compares bytes
        files[str(path.relative_to(folder))] = json.dumps(without(content, ("seconds", "checksum")))
    return files


@pytest.mark.parametrize("fixture", ["diffusion", "autoregressive"])
def test_texts_are_those_of_the_batches(fixture, request, tmp_path):
    model = request.getfixturevalue(fixture)
    (result,) = evaluate(model, out=tmp_path, **SMALL)
    settings = {"length": 8} | ({"block": 8} if fixture == "diffusion" else {})
    problems = held_out("lab-arith")
    for batch in ([0, 1, 2, 3], [4, 5]):
        prompts = [few_shot_prompt(problems[index], index, 1) for index in batch]
        for index, prompt, generation in zip(
            batch, prompts, sinkscope.generate(model, prompts, **settings), strict=True
        ):
            item = json.loads((tmp_path / "lab-arith" / "none" / f"{index:06d}.json").read_text())
            assert (item["index"], item["prompt"], item["gold"]) == (index, prompt, problems[index].result)
            assert (item["text"], item["steps"]) == (generation.text, generation.steps)
            assert item["tokens"] == generation.tokens[generation.prompt_length :].tolist()
    assert (result.model, result.weight_hash) == (model.card.name, model.card.weight_hash)
    assert (result.dtype, result.device) == ("float32", "cpu")
    assert set(result.versions) == {"python", "sinkscope", "torch", "transformers"}
    assert result.seconds > 0
    assert read_results(tmp_path) == [result]


def test_scores_and_programs(diffusion, tmp_path, answers):
    (result,) = evaluate(diffusion, out=tmp_path / "a", **{**SMALL, "limit": 10})
    assert (result.outcomes, result.n, result.correct, result.accuracy) == ("1001001001", 10, 4, 0.4)
    assert [len(prompts) for prompts in answers] == [4, 4, 2]
    code = {**SMALL, "tasks": ["lab-code"], "limit": 4}
    (result,) = evaluate(diffusion, out=tmp_path / "b", **code, allow_code_execution=True)
    item = json.loads((tmp_path / "b" / "lab-code" / "none" / "000000.json").read_text())
    assert (result.outcomes, item["reason"]) == ("1001", "ran to its end")


@pytest.mark.parametrize(("fixture", "rule"), [("diffusion", "random:2@seed=3"), ("autoregressive", "top:1")])
def test_a_rule_is_on_while_its_batches_are_written_and_says_what_it_did(fixture, rule, request, tmp_path):
    model = request.getfixturevalue(fixture)
    unhidden, hidden = evaluate(model, out=tmp_path, **{**SMALL, "hide": ["none", rule, "none"]})
    assert (unhidden.hide, unhidden.removed_share, unhidden.hit_rate, hidden.hide) == ("none", None, None, rule)
    plain, items = (
        [json.loads(path.read_text()) for path in sorted((tmp_path / "lab-arith").glob(name))]
        for name in ("none/*.json", f"{rule[:3]}*/*.json")
    )
    assert all(item["effect"] is None for item in plain)
    assert [item["tokens"] for item in plain] != [item["tokens"] for item in items]
    settings = {"length": 8} | ({"block": 8} if fixture == "diffusion" else {})
    shares = []
    for batch in ([0, 1, 2, 3], [4, 5]):
        with sinkscope.parse_rule(rule)(model) as running:
            generations = sinkscope.generate(
                model, [items[index]["prompt"] for index in batch], **settings, seed=batch[0]
            )
        for row, index in enumerate(batch):
            assert items[index]["tokens"] == generations[row].tokens[generations[row].prompt_length :].tolist()
            assert items[index]["effect"] == running.effect.of(row).as_dict()
            shares.append(running.effect.of(row).removed_share)
    assert hidden.removed_share == pytest.approx(sum(shares) / 6) and min(shares) > 0


def test_a_rule_in_two_spellings_is_one_rule(diffusion, tmp_path):
    spelled = "top:1 top:01 random:1 random:1@seed=00 above:3 above:3.0 top:1@layers=0 top:1@layers=0-0,local".split()
    results = evaluate(diffusion, out=tmp_path, **{**SMALL, "limit": 2, "hide": ["none", *spelled]})
    assert [one.hide for one in results] == ["none", "top:1", "random:1@seed=0", "above:3", "top:1@layers=0"]
    folders = [path.name for path in (tmp_path / "lab-arith").iterdir() if path.is_dir()]
    assert sorted(folders) == ["above-3", "none", "random-1-seed-0", "top-1", "top-1-layers-0"]
    assert [one["control"] for row in compare(results) for one in row["controls"]] == ["random:1"]


def test_a_larger_limit_goes_on_and_equals_a_run_that_had_it_from_the_first(diffusion, tmp_path):
    rules = {"hide": ["none", "top:1"]}
    evaluate(diffusion, out=tmp_path / "whole", **{**SMALL, **rules, "limit": 9})
    evaluate(diffusion, out=tmp_path / "grown", **{**SMALL, **rules})
    first = (tmp_path / "grown" / "lab-arith" / "none" / "000000.json").read_bytes()
    plain, _ = evaluate(diffusion, out=tmp_path / "grown", **{**SMALL, **rules, "limit": 9})
    assert plain.n == 9
    assert (tmp_path / "grown" / "lab-arith" / "none" / "000000.json").read_bytes() == first
    assert contents(tmp_path / "grown") == contents(tmp_path / "whole")


def test_a_corrupted_item_is_redone_and_the_rest_kept(diffusion, tmp_path, answers, caplog):
    (first,) = evaluate(diffusion, out=tmp_path, **SMALL)
    folder = tmp_path / "lab-arith" / "none"
    path, before = folder / "000001.json", {one.name: one.read_bytes() for one in folder.iterdir()}
    path.write_text(path.read_text().replace("false", "true"))
    (tmp_path / "results.json").write_text("{")
    (second,) = evaluate(diffusion, out=tmp_path, **SMALL)
    assert (second.outcomes, second.n) == (first.outcomes, 6) == ("100100", 6)
    assert len(answers) == 3 and answers[2] == answers[0]  # its batch was written again
    after = {one.name: one.read_bytes() for one in folder.iterdir() if one.suffix == ".json"}
    assert [name for name in before if before[name] != after[name]] in ([], ["000001.json"])
    assert "is damaged or of another run; it is kept as 000001.json.damaged" in caplog.messages[0]
    assert read_results(tmp_path) == [second]
    assert evaluate(diffusion, out=tmp_path, **SMALL) == [second] and len(answers) == 3


def test_changed_settings_under_the_same_folder_are_refused_and_nothing_is_written(diffusion, tmp_path, answers):
    evaluate(diffusion, out=tmp_path, **SMALL)
    before = contents(tmp_path)
    for change, named in (
        ({"shots": 0, "tasks": ["lab-sums", "lab-arith"], "limit": 1}, "shots: 1 → 0"),
        ({"settings": {"length": 8, "temperature": 0.5}}, "sampler.temperature: 0.0 → 0.5"),
    ):
        with pytest.raises(CallError, match=rf"holds another run \({named}\)"):
            evaluate(diffusion, out=tmp_path, **{**SMALL, **change})
    assert contents(tmp_path) == before and not (tmp_path / "lab-sums").exists()


def test_weights_that_were_changed_in_memory_do_not_go_on(diffusion, tmp_path, answers):
    evaluate(diffusion, out=tmp_path, **SMALL)
    weight = next(diffusion.network.parameters()).data
    kept = weight[0, :2].clone()
    try:
        weight[0, :2] = kept.flip(0)
        with pytest.raises(
            CallError,
            match=r"another run \(the weights in memory were changed after they were loaded; save them, and load",
        ):
            evaluate(diffusion, out=tmp_path, **SMALL)
    finally:
        weight[0, :2] = kept
    evaluate(diffusion, out=tmp_path, **SMALL)


@pytest.mark.parametrize("what", ["chat template", "config"])
def test_another_tokenizer_or_configuration_is_another_run(diffusion, diffusion_folder, tmp_path, what):
    """The files of the weights are the same, so is their hash; the prompts or the logits are not."""
    evaluate(diffusion, out=tmp_path / "out", **SMALL)
    other = tmp_path / "model"
    shutil.copytree(diffusion_folder, other)
    if what == "chat template":
        (other / "chat_template.jinja").write_text("{{ messages[0]['content'] }} says who?")
    else:
        config = json.loads((other / "config.json").read_text())
        (other / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 0.5}))
    with pytest.raises(CallError, match=f"the model's {'config' if what == 'config' else 'tokenizer'}.* is not that"):
        evaluate(sinkscope.load(str(other)), out=tmp_path / "out", **SMALL)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tasks": ["gsm9k"]}, "no task 'gsm9k': expected one of lab-arith, lab-code, lab-sums, gsm8k, "),
        ({"hide": ["top:500"]}, "hide: top:500 needs a canvas of at least 501 tokens; that of problem "),
        ({"hide": ["top:1@steps=0"]}, "top:1@steps=0 is in force in none of the steps 0 to 7 of .* the step before"),
        (
            {"tasks": ["lab-code"]},
            r"lab-code runs programs .* Pass allow_code_execution=True \(--allow-code-execution\)",
        ),
        ({"settings": {"gen_length": 8}}, "llada has no setting 'gen_length'; here it is called length"),
        ({"settings": {"length": 256}}, "the canvas does not fit: "),
    ],
)
def test_refusals_leave_nothing_behind(diffusion, tmp_path, change, message):
    with HideTopSinks(1)(diffusion), pytest.raises(CallError, match="found it under a rule that hides keys"):
        evaluate(diffusion, out=tmp_path / "out", **SMALL)
    with pytest.raises(CallError, match=message):
        evaluate(diffusion, out=tmp_path / "out", **{**SMALL, **change})
    assert not (tmp_path / "out").exists()


def test_what_the_sandbox_lacks_is_said_before_and_kept(diffusion, tmp_path, answers, caplog, monkeypatch):
    from sinkscope.evaluation import tasks
    from sinkscope.evaluation.sandbox import run_program

    for module in (running, tasks):
        monkeypatch.setattr(
            module, "run_program", lambda source: run_program(source, without=("namespaces", "seccomp", "landlock"))
        )
    (result,) = evaluate(
        diffusion, out=tmp_path, **{**SMALL, "tasks": ["lab-code"], "limit": 1}, allow_code_execution=True
    )
    assert any(line.startswith("network: the program can open sockets (") for line in result.not_enforced)
    said = "the sandbox cannot enforce everything on this system. "
    assert sorted(caplog.messages) == [said + line for line in sorted(result.not_enforced)]
