import pytest

import sinkscope
from sinkscope.attention import subscribed


@pytest.fixture(params=["diffusion", "autoregressive"])
def model(request):
    return request.getfixturevalue(request.param)


@pytest.fixture
def settings(model):
    return {"length": 6} if model.family.causal else {"length": 8, "block": 4, "steps": 8}


@pytest.fixture
def run():
    """Write under a rule; return the generation, the observations and the running intervention."""
    from dense_maps import Seen

    def run(model, rule, prompts, **settings):
        with subscribed(model.network, seen := Seen()), rule(model) as running:
            generations = sinkscope.generate(model, prompts, **settings)
        return generations, seen, running

    return run


@pytest.fixture(scope="session")
def lab_diffusion():
    """Trained, so that there are sinks: 6 layers, 6 heads."""
    return sinkscope.load("lab-diffusion")


@pytest.fixture(scope="session")
def lab_autoregressive():
    """Trained; 6 layers, 6 heads."""
    return sinkscope.load("lab-autoregressive")
