"""Likelihood benchmarks and the two-pass form of GSM8K: prompts beside lm-eval's, scores beside dense ones."""

import dataclasses
import json
import re
from pathlib import Path

import pytest
import torch

import sinkscope
from sinkscope.decoding import Likelihood
from sinkscope.errors import CallError
from sinkscope.evaluation import evaluate
from sinkscope.evaluation.choices import BENCHMARKS, Asked, Question, judge
from sinkscope.evaluation.running import PASS_SEEDS
from sinkscope.evaluation.tasks import find_task
from sinkscope.lab.recipes import RECIPES, Architecture
from sinkscope.lab.starting_network import build_network
from sinkscope.lab.texts import read_texts

PROBLEMS = [
    {"question": "He was  _  .", "answer": "B", "options": ["in bed", "at school", "ill", "gone"]},
    {"question": "Why did he go?", "answer": "D", "options": ["a bus", "a car", "no", "to learn"]},
    {"question": "What is best for a title?", "answer": "A", "options": ["A boy", "A car", "A bed", "A school"]},
]
ICE = {"text": ["ice", "a stone", "sand"], "label": ["A", "B", "C"]}
HOT = {"text": ["snow", "the sun"], "label": ["1", "2"]}
BAKING = {
    "activity_label": "Baking",
    "ctx_a": "[header] How to bake [title] Mix  it.",
    "ctx_b": "then HE",
    "label": "2",
}
HURT = {"context": "Anna fell.", "question": "How is she?", "answerA": "glad", "answerB": "hurt", "answerC": "rich"}
ROWS = {
    "arc_easy": [
        {"question": "What melts?", "choices": ICE, "answerKey": "A"},
        {"question": "What is hot?", "choices": HOT, "answerKey": "2"},
    ],
    "hellaswag": [BAKING | {"endings": ["eats [step] it.", "  runs.", "sleeps  well.", "sings."]}],
    "piqa": [{"goal": "Cut bread.", "sol1": "Use a knife.", "sol2": "Use a spoon.", "label": 0}],
    "race": [{"article": "A boy went to school.", "problems": str(PROBLEMS)}],
    "social_iqa": [HURT | {"label": "2"}],
    "lambada": [{"text": "he sat on the chair"}, {"text": "the cat ate the fish"}],
}
ROWS["arc_challenge"], ROWS["lambada_openai"] = ROWS["arc_easy"], ROWS["lambada"]


def write_rows(folder, name, rows=None):
    path = folder / f"{name}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows or ROWS[name]))
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A random diffusion model that knows every text: 2 layers, 4 heads."""
    folder = tmp_path_factory.mktemp("choices")
    (folder / "text.txt").write_text("the cat sat on the mat\n\nQuestion: what is hot?\nAnswer: the sun")
    tokenizer = read_texts(folder / "text.txt").tokenizer(280)
    shape = Architecture(layers=2, hidden_size=32, heads=4, kv_heads=2, intermediate_size=48, max_positions=512)
    network = build_network(dataclasses.replace(RECIPES["lab-diffusion"], architecture=shape), tokenizer)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if parameter.ndim == 2:
                parameter.mul_(20 if "embed" in name else 6)
    network.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    return sinkscope.load(str(folder / "model"))


def config_in(file):
    """The configuration of a task of lm-eval, functions by their names."""
    import yaml

    class Loader(yaml.SafeLoader):
        pass

    Loader.add_constructor("!function", lambda loader, node: node.value)
    return yaml.load(file.read_text(), Loader)


def harness(name, row):
    """Context, choices and gold as lm-eval's own templates and functions make them."""
    import lm_eval
    from lm_eval.utils import apply_template

    if name == "race":
        from lm_eval.tasks.race import preprocess_race as race

        return race.doc_to_text(row), race.doc_to_choice(row), race.doc_to_target(row)
    if name == "hellaswag":
        from lm_eval.tasks.hellaswag import utils

        class Rows:
            def map(self, change):
                return change(row)

        made = utils.process_docs(Rows())  # type: ignore[arg-type]
        return made["query"], made["choices"], made["gold"]

    files = {"piqa": "piqa/piqa", "social_iqa": "siqa/siqa", "lambada": "lambada/lambada_standard"}
    files["lambada_openai"] = "lambada/lambada_openai"
    file = Path(lm_eval.__file__).parent / "tasks" / f"{files.get(name, 'arc/arc_easy')}.yaml"
    config = config_in(file)
    text, benchmark = apply_template(config["doc_to_text"], row), BENCHMARKS[name]
    if name.startswith("lambada"):
        assert benchmark.hub == (config["dataset_path"], config["dataset_name"])
        assert benchmark.split == config["test_split"]
        return text, [apply_template(config["doc_to_target"], row).removeprefix(" ")], 0
    if name == "piqa":
        return text, [row["sol1"], row["sol2"]], row[config["doc_to_target"]]
    choices = row["choices"]["text"] if name.startswith("arc") else [row["answerA"], row["answerB"], row["answerC"]]
    return text, choices, int(apply_template(config["doc_to_target"], row))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("name", BENCHMARKS)
def test_questions_are_lm_evals(name, tmp_path):
    task = find_task(name, {name: write_rows(tmp_path, name)})
    for index, (row, question) in enumerate(zip(ROWS[name], task.problems(), strict=True)):
        context, choices, gold = harness(name, row)
        assert (question.context, list(question.choices), question.gold) == (context, choices, gold)
        assert task.prompt(question, index, 0) == context and task.gold(question) == choices[gold]


def test_the_choice_that_is_taken():
    question = Question("c", ("long ending", "no"), 0)
    asked = Asked(tuple(Likelihood(total, 0.0, 1, 1, None, "chain_rule") for total in (-11.0, -6.0)), None)
    assert judge(question, asked, normed=True) == (1, {"acc": False, "acc_norm": True})  # −1 and −3 a character
    assert judge(question, asked, normed=False) == (1, {"acc": False})
    same = Asked(tuple(Likelihood(-2.0, 0.0, 1, 1, None, "chain_rule") for _ in range(2)), None)
    assert judge(question, same, normed=False)[0] == 0


def settled(name, **more):
    return {"tasks": [name], "progress": False, "batch": 3, **more}


@pytest.mark.parametrize("name", ["arc_easy", "race"])
def test_items_hold_the_likelihoods_of_the_choices(name, model, tmp_path):
    settings = {"method": "monte_carlo", "samples": 20, "guidance": 0.6, "seed": 4}
    (result,) = evaluate(
        model, out=tmp_path / "out", data={name: write_rows(tmp_path, name)}, settings=settings, **settled(name)
    )
    assert result.n == len(ROWS[name]) and result.settings["guidance"] == 0.6 and set(result.measures) >= {"acc"}
    for index, question in enumerate(find_task(name, {name: tmp_path / f"{name}.jsonl"}).problems()):
        item = json.loads(
            (tmp_path / "out" / name / "none" / f"{index:06d}.json").read_text(), parse_constant=pytest.fail
        )
        own = settings | {"seed": 4 + index}
        expected = [
            sinkscope.log_likelihood(model, question.context, f" {choice}", **own).total for choice in question.choices
        ]
        assert [one["total"] for one in item["likelihoods"]] == pytest.approx(expected, rel=1e-5)
        assert item["text"] == question.choices[expected.index(max(expected))] and item["correct"] == (
            item["text"] == item["gold"]
        )


def test_a_rule_takes_attention_from_likelihoods(model, tmp_path):
    data, few = {"piqa": write_rows(tmp_path, "piqa")}, settled("piqa", settings={"samples": 8})
    plain, hidden = evaluate(model, out=tmp_path / "out", data=data, hide=["none", "top:2@current"], **few)
    assert plain.removed_share is None and hidden.removed_share is not None and hidden.removed_share > 0.01
    one, other = (
        json.loads((next((tmp_path / "out" / "piqa").glob(f"{rule}*")) / "000000.json").read_text())
        for rule in ("none", "top")
    )
    assert one["likelihoods"] != other["likelihoods"]


@torch.no_grad()
def test_lambada_is_written_by_confidence(model, tmp_path):
    """The loop of the published code: every step commits the most confident token, with guidance."""
    data = {"lambada": write_rows(tmp_path, "lambada")}
    settings = {"method": "chain_rule", "guidance": 1.1}
    texts = []
    for question in find_task("lambada", data).problems():
        prefix = model.encode(question.context)
        whole = model.encode(f"{question.context} {question.choices[0]}")
        canvas = torch.tensor([prefix + [model.card.mask_id] * (len(whole) - len(prefix))])
        for _ in range(len(whole) - len(prefix)):
            other = canvas.clone()
            other[:, : len(prefix)] = model.card.mask_id
            one, two = (model.network(x, use_cache=False).logits[0] for x in (canvas, other))
            chance, token = torch.softmax(two + 2.1 * (one - two), -1).max(-1)
            place = int(chance.masked_fill(canvas[0] != model.card.mask_id, -1).argmax())
            canvas[0, place] = token[place]
        texts.append(model.decode(canvas[0].tolist()))
    (result,) = evaluate(model, out=tmp_path / "a", data=data, settings=settings, **settled("lambada"))
    right = [one == other["text"] for one, other in zip(texts, ROWS["lambada"], strict=True)]
    assert right == [mark == "1" for mark in result.outcomes]


def read_until_the_end(model, generation):
    tokens, length = generation.tokens.tolist(), generation.prompt_length
    answer = tokens[length:]
    return model.decode([*tokens[:length], *answer[: (*answer, model.card.eos_id).index(model.card.eos_id)]])


TWO_PASSES = [{"question": "How many?", "answer": "So\n#### 3"}, {"question": "And how many now?", "answer": "#### 12"}]


def test_two_passes_are_two_generations(model, tmp_path):
    """Each problem and pass draws noise of its own; all that was written is scored."""
    data = {"gsm8k": write_rows(tmp_path, "gsm8k", TWO_PASSES)}
    settings = {"length": 8, "steps": 4, "block": 8, "temperature": 5.0}
    evaluate(
        model, out=tmp_path / "out", data=data, settings=settings | {"seed": 5}, **settled("gsm8k_two_pass", batch=1)
    )
    for index, row in enumerate(TWO_PASSES):
        first = sinkscope.generate(model, f"Question: {row['question']}", seed=5 + index, **settings)
        second = sinkscope.generate(model, read_until_the_end(model, first), seed=5 + index + PASS_SEEDS, **settings)
        item = json.loads((tmp_path / "out" / "gsm8k_two_pass" / "none" / f"{index:06d}.json").read_text())
        assert item["tokens"] == second.tokens[second.prompt_length :].tolist()
        assert item["text"] == read_until_the_end(model, second)
    asked = json.loads((tmp_path / "out" / "gsm8k_two_pass" / "task.json").read_text())
    assert asked["passes"] == 2, "items of one pass that were scored alone are another run"


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("Question: How many?So\n#### 4\nno\n#### 1,2 ", "12"),
        ("So\n#### 12\n", "12"),  # $ matches before a last line break
        ("So\n#### 12\nand so on", None),
    ],
)
def test_what_is_read_of_two_passes_is_what_the_published_code_reads(text, read, tmp_path):
    task = find_task("gsm8k_two_pass", {"gsm8k": write_rows(tmp_path, "gsm8k", TWO_PASSES)})
    score = task.score(task.problems()[1], text)
    assert (score.read, score.correct) == (read, read == "12")
    published = re.findall("#### (.*)$", text)  # evaluate_gsm8k_extratoken.py, get_acc
    assert (published[-1].replace(",", "").strip() if published else None) == read


PIQA = {"goal": "Cut.", "sol1": "a", "sol2": "b", "label": 1}


@pytest.mark.parametrize(
    ("name", "rows", "more", "message"),
    [
        ("piqa", None, {"settings": {"length": 8}}, "length: tasks of likelihoods have the settings method, samples"),
        ("piqa", None, {"hide": ["top:1"]}, "top:1 decides by the step before, .* expected observe=current"),
        ("lambada", [{"text": "the sun " * 300 + "sets"}], {}, "problem 0 with its longest choice has .* tokens"),
    ],
)
def test_what_does_not_fit_is_refused(name, rows, more, message, model, tmp_path):
    data = {name: write_rows(tmp_path, name, rows)}
    with pytest.raises(CallError, match=message):
        evaluate(model, out=tmp_path / "out", data=data, **settled(name, **more))
    assert not (tmp_path / "out").exists()
