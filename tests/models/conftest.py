import shutil

import pytest


@pytest.fixture
def folder(diffusion_folder, tmp_path):
    """A folder of a model that a test may damage."""
    return shutil.copytree(diffusion_folder, tmp_path / "model")


@pytest.fixture
def causal_folder(autoregressive_folder, tmp_path):
    return shutil.copytree(autoregressive_folder, tmp_path / "causal")
