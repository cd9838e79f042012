"""Paper 2's models: converted from lit-gpt's names, with the logits of the published code (see fixtures/README.md)."""

import argparse
import io
import json
import pickle
import re
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from closeness import assert_close, terms_of
from safetensors.torch import load_file, save, save_file
from smdm_weights import COLUMNS, KINDS, MASK, SHAPE, SINK, canvas, lit_gpt_weights

import sinkscope
from sinkscope.commands.convert import Convert
from sinkscope.decoding.checking import check_model
from sinkscope.errors import CallError, ModelError
from sinkscope.lab.vocabulary import build_tokenizer
from sinkscope.models import FAMILIES
from sinkscope.models.folding import fold
from sinkscope.models.smdm import convert, convert_weights, read_tensors, split_fused
from sinkscope.roles.conclusion import conclude
from sinkscope.roles.verdict import Rules

SMDM = FAMILIES["smdm"]

PUBLISHED = np.load(Path(__file__).parent / "fixtures" / "smdm_logits.npz")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    build_tokenizer().save_pretrained(folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(
        json.dumps({key: value for key, value in config.items() if key != "mask_token"})
    )
    return folder


@pytest.fixture(scope="module", params=KINDS)
def converted(request, tmp_path_factory, tokenizer):
    home = tmp_path_factory.mktemp("smdm")
    torch.save(lit_gpt_weights(request.param), home / "model.pth")
    return request.param, convert(home / "model.pth", home / "model", tokenizer=tokenizer, heads=SHAPE.n_head)


def assert_published(kind, network):
    """The published code's logits in fp32, and their log-sum-exp, which is no further off than the furthest of them."""
    logits = network(canvas(), use_cache=False).logits
    assert logits.shape == (2, 19, 32000)
    terms = terms_of(network, 20)
    assert_close(logits[:, :, COLUMNS], PUBLISHED[kind], terms=terms)
    assert_close(logits.double().logsumexp(-1), PUBLISHED[kind + "_logsumexp"], terms=terms, dtype=torch.float32)


@torch.no_grad()
def test_logits_are_those_of_the_published_code(converted):
    kind, folder = converted
    model = sinkscope.load(str(folder))
    assert_published(kind, model.network)
    assert model.family is SMDM and model.card.mask_id == MASK and model.card.vocabulary == 32001
    assert model.card.sink_token == (None if kind == "none" else kind)
    if kind == "token":
        assert model.network.config.sink_token["token_id"] == SINK


def test_sinkscope_check_proves_it(converted):
    failed = [one for one in check_model(sinkscope.load(str(converted[1]))) if not one.passed]
    assert not failed


@torch.no_grad()
def test_folded_too(converted, tmp_path):
    kind, folder = converted
    if kind == "token":
        model = sinkscope.load(str(fold(str(folder), tmp_path / "folded")))
        assert_published(kind, model.network)
    else:
        with pytest.raises(CallError):
            fold(str(folder), tmp_path / "folded")


def test_a_converted_model_writes_and_never_the_mask(converted, tmp_path):
    _, folder = converted
    model = sinkscope.load(str(folder))
    with sinkscope.recording(model, out=tmp_path / "run"):
        written = sinkscope.generate(model, [7, 8, 9, 10], length=8, steps=4, block=8)
    assert not bool((written.tokens >= MASK).any())
    trace = sinkscope.open_trace(tmp_path / "run")
    assert trace.column_sums.shape == (4, 3, 6, 12)
    assert trace.token_text(MASK) == f"<{MASK}>" and trace.token_text(7) == model.decode([7])


def test_a_role_names_a_mask_without_a_text_by_its_number(converted):
    model = sinkscope.load(str(converted[1]))
    row = {"layer": 0, "head": 0, "sink": 1.0, "token": MASK}
    assert conclude(model, (0, 0), [[row]], Rules()).token == f"<{MASK}>"


@pytest.mark.parametrize("form", ["packed", "under the key model", "safetensors"])
def test_other_forms_of_the_same_weights(form, tmp_path, tokenizer):
    weights = lit_gpt_weights("token")
    file = tmp_path / ("model.safetensors" if form == "safetensors" else "model.pth")
    if form == "packed":
        for layer in range(SHAPE.n_layer):
            name = f"transformer.h.{layer}.mlp.swiglu.w"
            weights[f"{name}12.weight"] = torch.cat([weights.pop(f"{name}1.weight"), weights.pop(f"{name}2.weight")])
    if form == "safetensors":
        save_file(weights, file)
    else:
        torch.save({"model": weights} if form == "under the key model" else weights, file)
    out = convert(file, tmp_path / "model", tokenizer=tokenizer, heads=SHAPE.n_head)
    _, expected = convert_weights(lit_gpt_weights("token"), "here", SHAPE.n_head)
    found = load_file(out / "model.safetensors")
    assert found.keys() == expected.keys() and all(
        torch.equal(found[name], tensor) for name, tensor in expected.items()
    )


def test_the_fused_projection_is_split_group_by_group():
    """Rows numbered by what they are: group, place within it, component."""
    groups, shared, size = 2, 3, 4
    rows = torch.tensor(
        [
            [100 * group + 10 * place + part]
            for group in range(groups)
            for place in range(shared + 2)
            for part in range(size)
        ]
    )
    queries, keys, values = split_fused(rows, groups * shared, groups)
    assert queries[:, 0].tolist() == [100 * g + 10 * p + c for g in range(2) for p in range(3) for c in range(4)]
    assert keys[:, 0].tolist() == [100 * g + 30 + c for g in range(2) for c in range(4)]
    assert values[:, 0].tolist() == [100 * g + 40 + c for g in range(2) for c in range(4)]


@pytest.mark.parametrize(("width", "layers", "heads"), [(640, 10, 10), (640, 16, 8), (1280, 18, 10)])
def test_heads_of_the_published_shapes(width, layers, heads):
    weights = {
        "lm_head.weight": torch.zeros(5, width),
        "transformer.wte.weight": torch.zeros(6, width),
        "transformer.ln_f.weight": torch.ones(width),
    }
    for layer in range(layers):
        block = f"transformer.h.{layer}."
        shapes = {"norm_1": (width,), "norm_2": (width,), "attn.attn": (3 * width, width), "attn.proj": (width, width)}
        shapes |= {"mlp.swiglu.w1": (7, width), "mlp.swiglu.w2": (7, width), "mlp.swiglu.w3": (width, 7)}
        weights |= {f"{block}{name}.weight": torch.zeros(1).expand(shape) for name, shape in shapes.items()}
    config, _ = convert_weights(weights, "here")
    assert (config["num_attention_heads"], config["num_key_value_heads"], config["intermediate_size"]) == (
        heads,
        heads,
        7,
    )


def changed(change):
    weights = lit_gpt_weights("none")
    change(weights)
    return weights


class Harmful:
    def __reduce__(self):
        return (print, ("this must never be printed",))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            lambda: {name: tensor.double() for name, tensor in lit_gpt_weights("none").items()},
            r"model\.pth: .*weight: expected float32, bfloat16, float16, found float64, which `load` refuses; cast it",
        ),
        (
            lambda: {"model": lit_gpt_weights("none"), "iter_num": 7},
            r"expected tensors only, found model \(dict\), iter_num \(int\) beside them; keep",
        ),
        (
            lambda: lit_gpt_weights("none") | {"hparams": "x"},
            r"expected tensors only, found hparams \(str\) beside them",
        ),
        (
            lambda: {"weights": Harmful()},
            r"expected tensors only, found GLOBAL print, which could run code when it",
        ),
        (
            lambda: {"model": lit_gpt_weights("none"), "args": argparse.Namespace(lr=1)},
            r"expected tensors only, found GLOBAL argparse\.Namespace, which could run code when it is read; where you trust it, save",
        ),
        (lambda: [torch.zeros(2)], r"expected tensors by name, found list"),
        (lambda: {}, r"expected tensors by name, found none"),
        (
            lambda: {"state_dict": lit_gpt_weights("none")},
            r'found state_dict \(dict\) beside them; .* torch\.save\(state\["state_dict"\], FILE\)',
        ),
        *(
            (
                lambda prefix=prefix: {prefix + name: tensor for name, tensor in lit_gpt_weights("none").items()},
                rf"expected a tensor lm_head\.weight, found {re.escape(prefix)}lm_head\.weight; remove '{re.escape(prefix)}': torch\.save",
            )
            for prefix in ("module.", "_orig_mod.", "a.b.")
        ),
        (
            lambda: {name.replace(".h.0.", ".h.3."): tensor for name, tensor in lit_gpt_weights("none").items()},
            r"expected a tensor transformer\.h\.0\.attn\.attn\.weight, found none",
        ),
        pytest.param(
            lambda: {"lm_head.weight": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])},
            r"lm_head\.weight: expected a dense tensor with its values, found a nested one",
            marks=pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors"),
        ),
        (
            lambda: changed(lambda w: w.pop("transformer.ln_f.weight")),
            r"expected a tensor transformer\.ln_f\.weight, found none; it holds lm_head",
        ),
        (
            lambda: changed(lambda w: w.update({"transformer.ln_f.weight": torch.ones(3)})),
            r"ln_f\.weight: expected shape \(24,\), found \(3,\)",
        ),
        (
            lambda: changed(lambda w: w.update({"transformer.h.0.attn.bias": torch.ones(3)})),
            r"found transformer\.h\.0\.attn\.bias beside them",
        ),
        *(
            (
                lambda found=found: changed(
                    lambda w: w.update({"transformer.h.0.attn.attn.weight": torch.tensor(found)})
                ),
                r"attn\.attn\.weight: expected rows of finite numbers, found ",
            )
            for found in (1.0, [float("nan")], [float("inf")])
        ),
        (
            lambda: changed(lambda w: w.update({"transformer.wte.weight": torch.ones(32005, 24)})),
            r"beyond the head's 32000, found 5",
        ),
        (
            lambda: {"transformer.wte.weight": torch.zeros(1).expand(100_000, 100_000)},
            r"model\.pth: transformer\.wte\.weight: expected 100000 × 100000 values, found 1, which it repeats; save tensor\.contiguous",
        ),
        (
            lambda: {k: v for k, v in lit_gpt_weights("none").items() if ".h." not in k},
            r"expected tensors transformer\.h\.0\.…, found lm_head",
        ),
        (
            lambda: changed(lambda w: w.update({"transformer.h.0.attn.attn.weight": torch.ones(41, 24)})),
            r"expected the rows of 6 heads of 4 .* found 41",
        ),
    ],
)
def test_a_file_that_is_something_else_is_refused(content, message, tmp_path, tokenizer, capsys):
    torch.save(content(), tmp_path / "model.pth")
    with pytest.raises(ModelError, match=message):
        convert(tmp_path / "model.pth", tmp_path / "model", tokenizer=tokenizer, heads=SHAPE.n_head)
    assert not (tmp_path / "model").exists() and "never be printed" not in capsys.readouterr().out


NO_TORCH_FILE = "expected a file that torch.save wrote, found no torch file: it begins with "
SAFE = save({"lm_head.weight": torch.ones(3)})
CUT = "expected a whole torch file, found one that is damaged or cut short; fetch it again"


def archive(*names):
    found = io.BytesIO()
    with zipfile.ZipFile(found, "w") as opened:
        for name in names:
            opened.writestr(name, "x")
    return found.getvalue()


def written(state, **how):
    found = io.BytesIO()
    torch.save(state, found, **how)
    return found.getvalue()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"junk, no model\n", NO_TORCH_FILE + "b'junk, no mod'"),
        (b"<html>not found</html>", NO_TORCH_FILE + "b'<html>not fo'"),
        (b"", NO_TORCH_FILE + "b''"),
        (pickle.dumps({"a": 1}), NO_TORCH_FILE + r"b'\x80"),
        (written({"a": torch.ones(3)})[:300], CUT),
        (SAFE, "expected a file that torch.save wrote, found safetensors; name it model.safetensors"),
        (archive("a.npy"), "expected a file that torch.save wrote, found another zip archive"),
        (
            archive("x/data.pkl", "x/constants.pkl"),
            "expected tensors by name, found a program of TorchScript; save its weights, torch.jit",
        ),
        (written({"a": torch.ones(3)}, _use_new_zipfile_serialization=False)[:-8], CUT),
        (
            written({"a": Harmful()}, _use_new_zipfile_serialization=False),
            "expected tensors only, found GLOBAL print, which could run code when it is read; where you trust it, save its",
        ),
        (
            written({"a": torch.ones(3)}, pickle_protocol=4),
            "expected a pickle of protocol 2 or 3, found 4, which torch reads only as code; save it anew without pickle_protocol",
        ),
    ],
)
def test_what_torch_refuses_is_said_without_its_advice(content, message, tmp_path):
    (tmp_path / "model.pth").write_bytes(content)
    with pytest.raises(ModelError) as refused:
        read_tensors(tmp_path / "model.pth")
    assert str(refused.value).startswith(f"{tmp_path / 'model.pth'}: {message}")
    assert not re.search(r"weights_only|WeightsUnpickler|\x1b|\n", str(refused.value))


def test_an_archive_that_torch_would_unpack_for_ever_is_refused(tmp_path):
    import zipfile

    file = tmp_path / "model.pth"
    torch.save({"a": torch.ones(2)}, file)
    with zipfile.ZipFile(file) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    for kind, message in (
        (zipfile.ZIP_DEFLATED, "found it compressed"),
        (zipfile.ZIP_STORED, "a list of tensors, at most 8 MB, found 10 MB"),
    ):
        with zipfile.ZipFile(file, "w", kind) as archive:
            for name, content in parts.items():
                archive.writestr(name, content + b" " * (10 << 20) * name.endswith("data.pkl"))
        with pytest.raises(ModelError, match=rf"data\.pkl: expected .*{message}"):
            read_tensors(file)


def test_variables_that_contradict_each_other_are_no_damage(tmp_path, monkeypatch):
    torch.save({"a": torch.ones(2)}, tmp_path / "model.pth")
    for name in ("TORCH_FORCE_WEIGHTS_ONLY_LOAD", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"):
        monkeypatch.setenv(name, "1")
    with pytest.raises(ModelError, match="because TORCH_FORCE_WEIGHTS_ONLY_LOAD and its opposite are set; unset them"):
        read_tensors(tmp_path / "model.pth")


@pytest.mark.parametrize("checked", [True, False])
def test_a_flipped_bit_of_a_tensor_is_seen_by_its_checksum(checked, tmp_path):
    file = tmp_path / "model.pth"
    torch.serialization.set_crc32_options(checked)
    torch.save({"a": torch.full((64,), 0.7)}, file)
    torch.serialization.set_crc32_options(True)
    assert (read_tensors(file)["a"] == 0.7).all()
    content = bytearray(file.read_bytes())
    content[content.index(torch.full((64,), 0.7).numpy().tobytes()) + 100] ^= 1
    file.write_bytes(content)
    if not checked:
        assert not (read_tensors(file)["a"] == 0.7).all()  # a file without checksums cannot be checked
        return
    with pytest.raises(
        ModelError,
        match=r"a whole torch file, found one that is damaged or cut short, its model/data/0 is not what its check",
    ):
        read_tensors(file)


def test_a_layer_of_a_number_that_none_has_is_a_strange_tensor(tmp_path):
    weights = lit_gpt_weights("none") | {f"transformer.h.{'9' * 5000}.norm_1.weight": torch.ones(24)}
    with pytest.raises(ModelError, match=r"found transformer\.h\.9{60,80} beside them"):
        convert_weights(weights, "model.pth", SHAPE.n_head)


def test_the_advice_for_what_is_no_tensor_fits_the_file(tmp_path):
    torch.save({"a": torch.ones(2), "step": 5}, tmp_path / "model.pth")
    with pytest.raises(
        ModelError, match=r"found step \(int\) beside them; .*\{name: one for name, one in state\.items\(\) if torch"
    ):
        read_tensors(tmp_path / "model.pth")


def test_safetensors_by_a_name_in_capitals(tmp_path):
    (tmp_path / "MODEL.SAFETENSORS").write_bytes(SAFE)
    assert [*read_tensors(tmp_path / "MODEL.SAFETENSORS")] == ["lm_head.weight"]


def retold(folder, tokenizer, tmp_path, **changes):
    """The tokenizer with other tokens: text → id, and its mask."""
    core = json.loads((tokenizer / "tokenizer.json").read_text())
    core["added_tokens"] += [
        {"id": number, "content": text, "special": True}
        | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        for text, number in changes.items()
    ]
    core["model"]["vocab"] |= changes
    made = tmp_path / folder
    made.mkdir()
    (made / "tokenizer.json").write_text(json.dumps(core))
    (made / "tokenizer_config.json").write_text((tokenizer / "tokenizer_config.json").read_text())
    return made


def test_a_tokenizer_that_load_would_refuse_is_refused_before_anything_is_written(tmp_path, tokenizer):
    sink, plain = tmp_path / "sink.pth", tmp_path / "plain.pth"
    torch.save(lit_gpt_weights("token"), sink)
    torch.save(lit_gpt_weights("none"), plain)
    taken, masked = retold("taken", tokenizer, tmp_path, other=SINK), tmp_path / "masked"
    build_tokenizer().save_pretrained(masked)
    messages = {
        (
            sink,
            taken,
        ): rf"sink\.pth, whose mask is token 32000, does not go with --tokenizer {taken}: .* token_id 32001, but .* 'other' there",
        (
            plain,
            masked,
        ): rf"plain\.pth, whose mask is token 32000, does not go with --tokenizer {masked}: .* expected token 32000, .* token 2",
    }
    for (file, folder), message in messages.items():
        with pytest.raises(ModelError, match=message):
            convert(file, tmp_path / "model", tokenizer=folder, heads=SHAPE.n_head)
        assert not (tmp_path / "model").exists()
    sinkscope.load(str(convert(plain, tmp_path / "model", tokenizer=taken, heads=SHAPE.n_head)))  # has no sink


def test_all_files_of_the_tokenizer_are_copied_or_refused(tmp_path, tokenizer):
    torch.save(lit_gpt_weights("none"), tmp_path / "model.pth")
    folder = tmp_path / "tokenizer"
    shutil.copytree(tokenizer, folder)
    (folder / "added_tokens.json").write_text("{}")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool.jinja").write_text("x")
    out = convert(tmp_path / "model.pth", tmp_path / "model", tokenizer=folder, heads=SHAPE.n_head)
    assert {path.relative_to(folder) for path in folder.rglob("*")} <= {
        path.relative_to(out) for path in out.rglob("*")
    }
    (folder / "chat_template.jinja").unlink()
    (folder / "chat_template.jinja").mkdir()
    with pytest.raises(
        ModelError,
        match=rf"^{folder}/chat_template\.jinja: expected a regular file, found a folder; fetch the tokenizer",
    ):
        convert(tmp_path / "model.pth", tmp_path / "other", tokenizer=folder, heads=SHAPE.n_head)
    assert not (tmp_path / "other").exists()


def test_a_sink_and_a_gate_together_are_refused():
    weights = lit_gpt_weights("token") | {
        name: tensor for name, tensor in lit_gpt_weights("gate").items() if "gate" in name
    }
    with pytest.raises(ModelError, match="expected either a sink token or a gate, found both"):
        convert_weights(weights, "here", SHAPE.n_head)


def test_packed_rows_beside_their_halves_are_refused():
    weights = lit_gpt_weights("none")
    halves = [weights[f"transformer.h.1.mlp.swiglu.w{number}.weight"] for number in (1, 2)]
    with pytest.raises(
        ModelError, match=r"expected transformer\.h\.1\.\S+w12\.weight or its two halves, found \S+w1\.weight beside it"
    ):
        convert_weights({**weights, "transformer.h.1.mlp.swiglu.w12.weight": torch.cat(halves)}, "here", SHAPE.n_head)


def test_weights_of_two_dtypes_are_loaded_in_the_wider_one(tmp_path, tokenizer):
    weights = lit_gpt_weights("none")
    weights["lm_head.weight"] = weights["lm_head.weight"].bfloat16()
    torch.save(weights, tmp_path / "model.pth")
    found = sinkscope.load(
        str(convert(tmp_path / "model.pth", tmp_path / "model", tokenizer=tokenizer, heads=SHAPE.n_head))
    )
    assert found.card.dtype == "float32"
    norm = weights["transformer.ln_f.weight"]
    assert torch.equal(found.network.model.norm.weight, norm) and torch.equal(
        found.network.lm_head.weight, weights["lm_head.weight"].float()
    )


def test_a_call_that_does_not_fit_is_refused(tmp_path, tokenizer):
    torch.save(lit_gpt_weights("none"), tmp_path / "model.pth")
    for heads in (0, -4):
        with pytest.raises(CallError, match=f"--heads: expected a whole number from 1 upwards, found {heads}"):
            convert(tmp_path / "model.pth", tmp_path / "model", tokenizer=tokenizer, heads=heads)
    with pytest.raises(CallError, match=r"its width 24 is none of the published ones \(256, .*\); pass --heads"):
        convert(tmp_path / "model.pth", tmp_path / "model", tokenizer=tokenizer)
    with pytest.raises(ModelError, match="number of heads that divides the width 24, found 5"):
        convert(tmp_path / "model.pth", tmp_path / "model", tokenizer=tokenizer, heads=5)
    with pytest.raises(ModelError, match="expected heads of an even size, whose halves can be rotated, found 8 of 3"):
        convert(tmp_path / "model.pth", tmp_path / "model", tokenizer=tokenizer, heads=8)
    with pytest.raises(CallError, match=r"--tokenizer .*: expected a folder with tokenizer\.json, found none"):
        convert(tmp_path / "model.pth", tmp_path / "model", tokenizer=tmp_path, heads=6)
    with pytest.raises(CallError, match="expected a new or empty folder"):
        convert(tmp_path / "model.pth", tmp_path, tokenizer=tokenizer, heads=6)
    with pytest.raises(CallError, match=r"expected a \.pth or \.safetensors file, found nothing"):
        convert(tmp_path / "other.pth", tmp_path / "model", tokenizer=tokenizer)
    (tmp_path / "cut.safetensors").write_bytes(b"\0" * 40)
    with pytest.raises(ModelError, match="expected safetensors, found something else"):
        read_tensors(tmp_path / "cut.safetensors")


def test_the_command_converts(tmp_path, tokenizer, capsys):
    torch.save(lit_gpt_weights("none"), tmp_path / "model.pth")
    Convert(file=tmp_path / "model.pth", out=tmp_path / "model", tokenizer=tokenizer, heads=6).run()
    printed = capsys.readouterr()
    assert printed.out == f"{tmp_path / 'model'}\n"
    missing = MASK - len(sinkscope.load(str(tmp_path / "model")).tokenizer)
    assert (
        printed.err
        == f"{missing:,} of its tokens have no text in {tokenizer}: is it the tokenizer with which the model was trained?\n"
    )


def test_a_tokenizer_of_all_tokens_is_not_noted(tmp_path, tokenizer, capsys):
    torch.save(lit_gpt_weights("none"), tmp_path / "model.pth")
    known = len(json.loads((tokenizer / "tokenizer.json").read_text())["model"]["vocab"])
    whole = retold("whole", tokenizer, tmp_path, **{f"token{number}": number for number in range(known, MASK)})
    Convert(file=tmp_path / "model.pth", out=tmp_path / "model", tokenizer=whole, heads=6).run()
    assert capsys.readouterr().err == ""
