"""The names that `mink_local` exports, and those of its classes."""

import pytest

import mink_local
from mink_local import samplers
from tests.support.python import output_of


@pytest.mark.parametrize("name", mink_local.__all__)
def test_every_name_is_there(name: str) -> None:
    thing = getattr(mink_local, name)
    assert name in dir(mink_local)
    assert getattr(thing, "__name__", name) == name


def test_every_sampler_is_exported() -> None:
    assert {sampler.__name__ for sampler in samplers.SAMPLERS.values()} < set(mink_local.__all__)


def test_other_names_are_an_error() -> None:
    with pytest.raises(AttributeError, match="'MinQ'"):
        _ = mink_local.MinQ


def test_the_import_is_light() -> None:
    program = "import sys, mink_local; dir(mink_local); print(*sys.modules)"
    assert not {"llama_cpp", "numba", "numpy"} & set(output_of("-c", program).split())
