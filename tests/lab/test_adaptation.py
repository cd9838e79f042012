"""A causal model turned into a diffusion model: the adapter that is written is the network that was trained."""

from dataclasses import replace

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

import sinkscope
from sinkscope.errors import CallError, ModelError
from sinkscope.lab.recipes import RECIPES, Adaptation
from sinkscope.lab.run_folder import read_recipe
from sinkscope.lab.starting_network import held_out_losses, hidden, save_adapter, seen_keys, start
from sinkscope.lab.training import train, train_checkpoint
from sinkscope.models.folders import find_folder

MIX = replace(RECIPES["adapted"].canvases, tokens=128, lengths=(64,), templates=("buy",))
SMALL = replace(
    RECIPES["adapted"],
    updates=4,
    canvases=MIX,
    start_from="lab-autoregressive",
    adaptation=Adaptation(rank=2),
    autocast=False,
    snapshots=(0, 2),
    validate_every=4,
    save_every=2,
)


def test_the_adapter_that_is_written_computes_what_was_trained(tmp_path):
    network = train(SMALL, tmp_path / "run", progress=False).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.requires_grad:
                parameter.copy_(parameter.bfloat16())
    save_adapter(network, "lab-autoregressive", tmp_path / "adapter")
    model, base = sinkscope.load(tmp_path / "adapter"), sinkscope.load("lab-autoregressive")
    assert (model.family.name, model.family.shift, model.card.mask_id) == ("dream", True, base.tokenizer.mask_token_id)
    tokens = torch.tensor([[0, 40, 41, 42, 2, 2]])
    with torch.no_grad():
        trained, loaded, causal = (one(tokens).logits for one in (network, model.network, base.network))
    assert (trained - loaded).abs().max() <= 1e-5 * trained.abs().max() < (causal - loaded).abs().max()


@pytest.mark.parametrize("changes", [{"adaptation": Adaptation(rank=None)}, {"objective": "next_token"}], ids=str)
def test_all_weights_or_a_causal_model_are_written_too(changes, tmp_path):
    recipe = replace(SMALL, updates=1, snapshots=(), **changes)
    network = train(recipe, tmp_path / "run", progress=False).eval()
    model = sinkscope.load(train_checkpoint(recipe, tmp_path / "run"))
    assert model.family.causal == (recipe.objective == "next_token")
    tokens = torch.tensor([[0, 40, 41, 42]])
    with torch.no_grad():
        trained, loaded = (one(tokens).logits for one in (network, model.network))
    assert (trained - loaded).abs().max() <= 0.02 * trained.abs().max()  # weights are stored in bf16


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_a_tied_base_predicts_what_was_trained(kind, tmp_path):
    tokenizer = sinkscope.load("lab-autoregressive").tokenizer
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "head_dim": 16}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": len(tokenizer)}
    config = AutoConfig.for_model(kind, **sizes, **heads, tie_word_embeddings=True, eos_token_id=1)
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "tied")
    tokenizer.save_pretrained(tmp_path / "tied")
    recipe = replace(SMALL, updates=1, start_from=str(tmp_path / "tied"))
    network = train(recipe, tmp_path / "run", progress=False).eval()
    save_adapter(network, str(tmp_path / "tied"), tmp_path / "adapter")
    tokens = torch.tensor([[0, 40, 41, 42, 2, 2]])
    with torch.no_grad():
        trained, loaded = (one(tokens).logits for one in (network, sinkscope.load(tmp_path / "adapter").network))
    assert (trained - loaded).abs().max() <= 0.02 * trained.abs().max()


def test_a_first_token_that_sees_only_itself_is_loaded_so(tmp_path):
    recipe = replace(SMALL, updates=2, adaptation=Adaptation(rank=2, first_alone=True))
    network = train(recipe, tmp_path / "run", progress=False).eval()
    train_checkpoint(recipe, tmp_path / "run")
    loaded = sinkscope.load(tmp_path / "run", dtype="float32")
    tokens = torch.tensor([[0, 40, 41, 42, 2, 2]])
    with torch.no_grad():
        trained = network.lm_head(hidden(network, tokens, seen_keys(recipe.adaptation, 6)).last_hidden_state)
        assert (trained - loaded.network(tokens).logits).abs().max() <= 0.02 * trained.abs().max()
    with sinkscope.recording(loaded, out=tmp_path / "trace"):
        sinkscope.generate(loaded, [0, 40, 41, 42], length=4, steps=4)
    assert sinkscope.open_trace(tmp_path / "trace").self_attention[:, :, :, 0] == pytest.approx(1)
    loaded.network.save_pretrained(tmp_path / "saved")
    loaded.tokenizer.save_pretrained(tmp_path / "saved")
    assert sinkscope.load(tmp_path / "saved").network(tokens).logits.equal(loaded.network(tokens).logits)


@pytest.mark.parametrize("objective", ["next_token", "shifted_diffusion"])
def test_a_training_goes_on_with_an_adapter(objective, tmp_path):
    train_checkpoint(replace(SMALL, objective=objective), tmp_path / "first")
    further, seen = replace(SMALL, start_from=str(tmp_path / "first")), torch.ones(1, 1, 4, 4, dtype=torch.bool)
    begun, causal = start(further), objective == "next_token"
    tokens = torch.tensor([[0, 40, 41, 42 if causal else begun.config.mask_token_id]])
    with torch.no_grad():
        logits = begun.lm_head(hidden(begun, tokens, seen.tril() if causal else seen).last_hidden_state)
        expected = sinkscope.load(tmp_path / "first", dtype="float32").network(tokens).logits
    assert (logits - expected).abs().max() <= 1e-4 * logits.abs().max()
    train_checkpoint(further, tmp_path / "further")
    assert sinkscope.load(tmp_path / "further").family.name == "dream"
    with pytest.raises(CallError, match="expected an adapter of rank 4"):
        start(replace(further, adaptation=Adaptation(rank=4)))
    config = tmp_path / "first" / "config.json"
    config.write_text(config.read_text().replace('"sinkscope_base": "', '"sinkscope_base": "0'))
    with pytest.raises(ModelError, match="expected the base that it was trained on"):
        start(further)


def test_an_adapter_with_a_sink_token_is_not_gone_on_with_in_silence(tmp_path):
    train_checkpoint(replace(SMALL, sink_token="token"), tmp_path / "first")
    with pytest.raises(CallError, match="with a sink token"):
        start(replace(SMALL, start_from=str(tmp_path / "first")))


@pytest.mark.parametrize("kind", ["token", "gate"])
def test_a_sink_token_is_trained_written_and_loaded(kind, tmp_path):
    recipe = replace(SMALL, sink_token=kind)
    network = train(recipe, tmp_path / "run", progress=False).eval()
    train_checkpoint(recipe, tmp_path / "run")
    loaded = sinkscope.load(tmp_path / "run", dtype="float32")
    assert loaded.card.sink_token == kind
    tokens = torch.tensor([[0, 40, 41, 42, 2, 2]])
    with torch.no_grad():
        trained = network.lm_head(hidden(network, tokens, seen_keys(recipe.adaptation, 6)).last_hidden_state)
        assert (trained - loaded.network(tokens).logits).abs().max() <= 0.02 * trained.abs().max()
    plain = train(replace(recipe, sink_token="none"), tmp_path / "plain", progress=False)
    assert (trained - plain(tokens).logits).abs().max() > 0.05 * trained.abs().max()


def test_alignment_without_the_base_as_it_is_is_refused(tmp_path):
    for change, says in (
        ({"adaptation": Adaptation(rank=None, align=1.0)}, "base as it is"),
        ({"adaptation": Adaptation(rank=2, align=1.0), "sink_token": "token"}, "base as it is"),
    ):
        with pytest.raises(CallError, match=says):
            train_checkpoint(replace(SMALL, **change), tmp_path / "out")


def test_a_killed_adaptation_resumes_where_it_was(tmp_path):
    def kill(network, update):
        if update == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_checkpoint(SMALL, tmp_path / "killed", watch=kill)
    for name in ("killed", "whole"):
        train_checkpoint(SMALL, tmp_path / name)
    one, two = ((tmp_path / name / "adapter_model.safetensors").read_bytes() for name in ("killed", "whole"))
    assert one == two


@pytest.mark.parametrize("changes", [{}, {"adaptation": Adaptation(rank=None)}, {"sink_token": "token"}], ids=str)
def test_the_base_predicts_the_held_out_text_as_it_does_alone(changes):
    recipe, tokens = replace(SMALL, **changes), torch.arange(10, 74).view(2, 32)
    found = held_out_losses(start(recipe), recipe, tokens.numpy())
    base = sinkscope.load("lab-autoregressive").network
    with torch.no_grad():
        logits = base(tokens).logits[:, :-1].log_softmax(-1)
    expected = -logits.gather(-1, tokens[:, 1:, None]).mean()
    assert found["causal"] == pytest.approx(float(expected), rel=1e-4)
    assert set(found) == {"masked_0.15", "masked_0.5", "masked_0.85", "causal"}


def test_alignment_is_nothing_where_the_network_is_still_the_base(tmp_path):
    aligned = replace(SMALL, updates=1, adaptation=Adaptation(rank=2, align=10.0))
    losses = []
    train(aligned, tmp_path / "a", progress=False)
    train(replace(aligned, adaptation=Adaptation(rank=2)), tmp_path / "b", progress=False)
    for name in ("a", "b"):
        losses.append(float((tmp_path / name / "training.jsonl").read_text().split('"loss": ')[1].split(",")[0]))
    assert losses[0] > losses[1] + 0.1  # it looks both ways, the base does not


def test_what_a_query_sees():
    assert seen_keys(Adaptation(), 4).all()
    alone = seen_keys(Adaptation(first_alone=True), 4)[0, 0]
    assert alone[0].tolist() == [True, False, False, False] and alone[1:].all()
    shares = [float(seen_keys(Adaptation(anneal=100), 64, update).float().mean()) for update in (0, 50, 100, -1)]
    assert shares[0] == pytest.approx(0.5, abs=0.01) and shares[1] == pytest.approx(0.75, abs=0.02)
    assert shares[2:] == [1, 1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("lab-diffusion", "--rank", "4"), "--rank is not used with lab-diffusion, but with adapted"),
        (("adapted-causal", "--no-shift"), "--no-shift is not used with adapted-causal, but with adapted"),
        (("adapted", "--base", "lab-diffusion"), "expected a causal"),
        (("adapted", "--tokens", "64"), "--tokens: expected 128, one canvas, or more, found 64"),
        (("adapted", "--base", "lab-autoregressive", "--mask-token", "xyz"), "mask token: expected one of"),
    ],
)
def test_an_adaptation_that_cannot_be_is_refused(arguments, message, run, tmp_path):
    status, _, err = run("train", *arguments, "--out", tmp_path / "out")
    assert status == 2 and message in err


def test_an_adaptation_trains_as_the_command_says(run, tmp_path):
    asked = ("--base", "lab-autoregressive", "--rank", "2", "--updates", "1", "--tokens", "256", "--whole-share", "0.5")
    status, _, err = run("train", "adapted", *asked, "--learning-rate", "1e-4", "--out", tmp_path / "out")
    assert status == 0, err
    recipe = read_recipe(tmp_path / "out")
    assert (recipe.canvases.tokens, recipe.whole_canvas_share, recipe.learning_rate) == (256, 0.5, 1e-4)


@pytest.mark.parametrize("name", ["smollm2-diffusion", "smollm2-problems", "smollm2-problems-diffusion"])
def test_the_recipe_of_a_bundled_adapter_is_whole(name):
    assert read_recipe(find_folder(name)).adaptation is not None
