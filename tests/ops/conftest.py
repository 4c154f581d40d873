"""What the tests of operators share."""

import numpy as np
import pytest


@pytest.fixture(autouse=True)
def numbers_of_its_own(request):
    """A module's RNG starts anew for each test, so that none depends on what ran before."""
    if hasattr(request.module, "RNG"):
        request.module.RNG = np.random.default_rng(request.module.RNG.bit_generator.seed_seq)
