"""Random networks that write different tokens at every position, so that equal tokens are evidence."""

import pytest
import torch

import sinkscope


def load_varied(folder):
    """A fresh copy of a tiny model with sharper attention, stronger layers and a surer head."""
    model = sinkscope.load(str(folder))
    with torch.no_grad():
        for name, weight in model.network.named_parameters():
            if any(part in name for part in ("q_proj", "k_proj", "o_proj", "down_proj")):
                weight.mul_(3)
            if "lm_head" in name:
                weight.mul_(6)
    return model


@pytest.fixture(scope="session")
def varied_diffusion(diffusion_folder):
    return load_varied(diffusion_folder)


@pytest.fixture(scope="session")
def varied_autoregressive(autoregressive_folder):
    return load_varied(autoregressive_folder)
