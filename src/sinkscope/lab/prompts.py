"""The lab's problems as text: few-shot prompts of held-out ones, and a word-level tokenizer.

A prompt has solved training problems (shots), then the question, as in a canvas. The shots depend only on task and
number of the problem; with those of `SHOTS` a prompt has 196 to 325 tokens. Every digit, punctuation mark and newline
is a token, and a token includes the space before it, written ``▁``, so decoding returns the text, on ASCII. Words
outside the vocabulary become ``<|unk|>``; `sinkscope.models` refuses prompts that contain one.
"""

import functools
import random
import string
from itertools import islice
from typing import Any

from sinkscope.errors import CallError
from sinkscope.lab import problems
from sinkscope.lab.problems import Problem, held_out

SPECIMEN = "lab-nulls-"  # how the names of tasks and models of letters and nulls begin
SHOTS = {"lab-arith": 5, "lab-code": 7, "lab-sums": 0}
BOS, EOS, MASK, UNKNOWN = SPECIAL_TOKENS = ("<|bos|>", "<|eos|>", "<|mask|>", "<|unk|>")
SPACE = "▁"
_PIECES = rf"{SPACE}{{4}}|{SPACE}?[A-Za-z]+|{SPACE}?[0-9]|{SPACE}?#+|\n|{SPACE}?[^{SPACE}A-Za-z0-9\n]|{SPACE}"
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}Q: {{ message['content'] }}\nA:"
    "{% else %} {{ message['content'] }}\n\n{% endif %}{% endfor %}"
)


def few_shot_prompt(problem: Problem, index: int, shots: int) -> str:
    """Return the prompt for problem number ``index`` of its task. With fewer shots, a prompt has the first of them."""
    solved = islice(problems.training_problems(random.Random(f"shots {problem.task} {index}"), problem.task), shots)
    return "\n\n".join([*map(problems.render, solved), problems.question_text(problem)])


def task_of(model: str) -> str:
    """Return the default task of a bundled model: its own for a specimen, else lab-arith."""
    return model.rpartition("-")[0] if model.startswith(SPECIMEN) else "lab-arith"


def answer_settings(model: str) -> dict[str, int]:
    """Return the default settings of the sampler for a bundled model; the longest worked answer has 32 tokens."""
    if model.startswith(SPECIMEN):
        return {"length": 20} if "autoregressive" in model else {"length": 40, "steps": 20}
    if model == "lab-autoregressive":
        return {"length": 32}
    return {"length": 32, "steps": 32, "block": 16} if model.startswith("lab-") else {}


def problem_prompt(task: str = "lab-arith", index: int = 0, shots: int | None = None) -> dict[str, str]:
    """Return held-out problem number ``index`` as ``{"prompt", "answer"}``; see `problem_prompts`."""
    if task.startswith(SPECIMEN):
        from sinkscope.lab.canvases import draw_prompt
        from sinkscope.lab.recipes import RECIPES

        recipe = RECIPES.get(task)
        if recipe is None or recipe.nulls is None or shots:
            known = ", ".join(one for one in RECIPES if one.startswith(SPECIMEN))
            raise CallError(f"no task {task!r} with {shots or 'no'} shots: expected none, and one of {known}")
        return draw_prompt(recipe.nulls, index)
    held = held_out(task)
    if not 0 <= index < len(held):
        raise CallError(f"{task}: expected a problem from 0 to {len(held) - 1}, found {index}")
    problem = held[index]
    row = {"prompt": few_shot_prompt(problem, index, SHOTS[task] if shots is None else shots), "answer": problem.result}
    return row | {"answer": problem.worked, "tests": problem.result} if task == "lab-code" else row


def problem_prompts(
    task: str = "lab-arith", count: int | None = None, shots: int | None = None
) -> list[dict[str, str]]:
    """Return ``prompt`` and ``answer`` of the first ``count`` held-out problems of a task, or of all (24 of a
    specimen's): the number to find, or for lab-code a right program, with its ``tests``. Raise CallError for too many.
    """
    if count is None:
        count = 24 if task.startswith(SPECIMEN) else len(held_out(task))
    return [problem_prompt(task, index, shots) for index in range(count)]


@functools.cache
def build_tokenizer() -> Any:
    """Return the tokenizer as a `transformers.PreTrainedTokenizerFast`, which `AutoTokenizer` reads from a folder.

    It knows every token of the lab's texts and every printable ASCII character.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    letters = [one for one in string.printable if one.isprintable() and one != " "]
    of_problems = (*problems.NAMES, *problems.ITEMS, *problems.PLACES, *problems.DAYS)
    texts = [f"{word} {word}" for word in (*of_problems, *problems.FUNCTIONS, *problems.ARGUMENTS, *letters)]
    texts += [*problems.QUESTIONS.values()]
    texts += [f"{request} {body}" for request, body, _ in problems.CODE_TEMPLATES.values()]
    rng = random.Random(0)
    for make in (problems.make_problem, problems.make_code_task):
        texts += [problems.render(make(rng)) for _ in range(2000)]
    split = pre_tokenizers.Split(Regex(_PIECES), "isolated")
    found = {"\n", SPACE, SPACE * 4}
    for text in texts:
        found.update(piece for piece, _ in split.pre_tokenize_str(text.replace(" ", SPACE)))
    vocabulary = {token: index for index, token in enumerate([*SPECIAL_TOKENS, *sorted(found)])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Replace(" ", SPACE)
    tokenizer.pre_tokenizer = split
    tokenizer.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.Fuse()])
    fast = as_transformers(tokenizer, unk_token=UNKNOWN)
    fast.chat_template = CHAT_TEMPLATE
    return fast


def as_transformers(tokenizer: Any, **more: Any) -> Any:
    """Return a tokenizer with the lab's special tokens as a `transformers.PreTrainedTokenizerFast`."""
    from tokenizers import processors
    from transformers import PreTrainedTokenizerFast

    begins = [(BOS, tokenizer.token_to_id(BOS))]
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=begins)
    special = {"bos_token": BOS, "eos_token": EOS, "pad_token": EOS, "mask_token": MASK, "padding_side": "left"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, **special, **more)
