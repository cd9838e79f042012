"""`trace --chat`: the tokens in front of the answer are those of the model's template."""

import json

import pytest

import sinkscope

QUESTION = "Tom has 7 apples. How many apples does Tom have?"
SHORT = ("--length", "4", "--steps", "4", "--block", "4")


@pytest.fixture(scope="module")
def instruct(tmp_path_factory):
    """A folder with a template, so that its name is not that of a bundled model."""
    model = sinkscope.load("lab-diffusion")
    folder = tmp_path_factory.mktemp("instruct") / "model"
    model.network.save_pretrained(folder)
    model.tokenizer.chat_template = "{% for one in messages %}{{ one['content'] }} {% endfor %}"
    model.tokenizer.save_pretrained(folder)
    return folder


def prompt_of(trace):
    return trace.tokens[0, : trace.manifest["prompt_length"]].tolist()


def test_a_prompt_is_put_into_the_template(run, instruct, tmp_path):
    messages = [{"role": "system", "content": "Tom has 9 pens."}, {"role": "user", "content": QUESTION}]
    chat = ("--chat", "--system", messages[0]["content"], "--name", "my model")
    status, _, err = run("trace", instruct, "--prompt", QUESTION, *chat, "--out", tmp_path / "t", *SHORT)
    trace = sinkscope.open_trace(tmp_path / "t")
    assert status == 0 and "chat template" not in err and trace.manifest["model"]["name"] == "my model"
    assert prompt_of(trace) == sinkscope.load(instruct).chat(messages)


def test_lines_may_hold_messages(run, instruct, tmp_path):
    messages = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": "7"}]
    rows = [{"messages": messages}, {"prompt": QUESTION}]
    (tmp_path / "p.jsonl").write_text("\n".join(map(json.dumps, rows)))
    status, _, err = run("trace", instruct, "--prompts", tmp_path / "p.jsonl", "--out", tmp_path / "t", *SHORT)
    assert status == 0 and "has a chat template, which --chat applies" in err
    model = sinkscope.load(instruct)
    found = [prompt_of(one) for one in sinkscope.open_traces(tmp_path / "t")]
    assert found == [model.chat(messages), model.encode(QUESTION)]


def test_a_system_message_needs_chat(run, instruct, tmp_path):
    status, _, err = run("trace", instruct, "--prompt", QUESTION, "--system", "x", "--out", tmp_path / "t")
    assert status == 2 and "--system is not used without --chat" in err
