"""No code of a checkpoint is executed, wherever a folder names some."""

import json
import pickle

import pytest
from hostile import trial

WORDS = ["trace", "{0}/model", "--prompt", "Q: Tom\nA:", "--length", "4", "--steps", "4", "--block", "4"]


class Touch:
    """Pickled, it is a file that is made when it is read."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


@pytest.mark.parametrize("kind", ["config", "tokenizer", "weights"])
def test_code_of_a_folder_is_not_run(place, tmp_path, kind):
    model, ran = place / "model", tmp_path / "ran"
    for name in ("modeling_mine", "configuration_mine", "tokenization_mine"):
        (model / f"{name}.py").write_text(f"open({str(ran)!r}, 'w')\nclass Mine: pass\n")
    if kind == "weights":
        (model / "model.safetensors").unlink()
        (model / "pytorch_model.bin").write_bytes(pickle.dumps(Touch(ran)))
    else:
        path = model / ("config.json" if kind == "config" else "tokenizer_config.json")
        mine = {"architectures": ["Mine"], "auto_map": {"AutoModelForCausalLM": "modeling_mine.Mine"}}
        if kind == "tokenizer":
            mine = {"tokenizer_class": "Mine", "auto_map": {"AutoTokenizer": ["tokenization_mine.Mine", None]}}
        path.write_text(json.dumps(json.loads(path.read_text()) | mine))
    outcome = trial.run(*(word.format(place) for word in WORDS), "--out", tmp_path / "out")
    assert outcome.refused and not ran.exists(), outcome


def test_code_of_a_checkpoint_that_is_converted_is_not_run(place, tmp_path):
    ran = tmp_path / "ran"
    (tmp_path / "w.pth").write_bytes(pickle.dumps({"model": Touch(ran)}))
    outcome = trial.run("convert", tmp_path / "w.pth", "--tokenizer", place / "lit", "--out", tmp_path / "out")
    assert outcome.refused and not ran.exists(), outcome
