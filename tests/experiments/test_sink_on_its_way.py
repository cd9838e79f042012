"""`experiments/sink_on_its_way.py`: its dense attention hides what each rule says, and its windows are the text."""

import pytest
import torch
from _windows import cut_anywhere, half_of
from sink_on_its_way import Dense

import sinkscope


@pytest.mark.parametrize("rule", ["first", "top", "random", "rowmass"])
def test_a_rule_hides_what_it_says(rule):
    columns = torch.rand(3, 2, 12, generator=torch.Generator().manual_seed(0)) ** 4
    gone = Dense(torch.ones(12, dtype=torch.bool), rule)._gone(columns)
    largest = columns.argmax(-1, keepdim=True)
    if rule == "rowmass":
        held, most = (columns * gone).sum(-1), columns.amax(-1)
        assert (((held >= most) & (held < 2 * most)) | (gone.sum(-1) == 11)).all()
    else:
        assert (gone.sum(-1) == 1).all() and gone[..., 0].all() == (rule == "first")
    assert gone.gather(-1, largest).all() == (rule == "top")


def test_hidden_keys_get_nothing_and_the_others_their_share():
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 1, 2, 5, 8).unbind()
    judged = torch.tensor([False, True, True, True, True])
    module = type("Layer", (), {"layer_idx": 0})
    plain, hiding = (Dense(judged, rule)(module, query, key, value, 0.0, scaling=1.0)[0] for rule in ("none", "first"))
    expected = (query @ key.mT).softmax(-1)
    expected[:, :, 1:, 0] = 0
    expected = (expected / expected.sum(-1, keepdim=True) @ value).transpose(1, 2)
    assert torch.allclose(hiding, expected, atol=1e-6) and torch.allclose(plain[:, 0], hiding[:, 0])


def test_windows_are_the_text_between_bos_and_eos():
    tokenizer = sinkscope.load("lab-autoregressive").tokenizer
    windows = cut_anywhere(tokenizer, ["Tom buys 5 apples.", "Ann buys 7 apples."], 3, 4)
    own = [tokenizer(text, add_special_tokens=False).input_ids for text in ("Tom buys 5 apples.", "Ann buys 7 apples.")]
    bos, eos = tokenizer.bos_token_id, tokenizer.eos_token_id
    assert windows.flatten().tolist() == [bos, *own[0], eos, bos, *own[1], eos][:12] and windows.shape == (3, 4)
    assert not half_of(windows)[:, 0].any() and cut_anywhere(tokenizer, ["Tom"], 3, 40).shape == (0, 40)
