"""The looks of methods and the bytes of pictures."""

import re

from matplotlib.figure import Figure

from mink_local.evals.figures import Picture, look
from mink_local.samplers import SAMPLERS, default_samplers, label


def test_every_method_has_a_look_of_its_own() -> None:
    looks = {name: look(name) for name in SAMPLERS}
    assert len({one["color"] for one in looks.values()}) == len(SAMPLERS)
    assert len({one["marker"] for one in looks.values()}) == len(SAMPLERS)
    for sampler in map(str, default_samplers()):
        assert look(sampler)["color"] == looks[sampler.partition(":")[0]]["color"]
        assert (look(sampler)["linestyle"] == "--") == ("temperature-first" in sampler)
        assert look(label(sampler)) == look(sampler)
    assert look("top-p (T last)")["color"] == looks["top-p"]["color"]
    chain = look("min-k:tau=1e+16+top-p:p=0.9,order=temperature-last")
    assert chain == look("min-k+top-p (T last)") == look(label("min-k+top-p:p=0.5,order=temperature-last"))
    assert chain["color"] not in [one["color"] for one in looks.values()]


def test_the_same_figure_is_the_same_bytes() -> None:
    def draw() -> Figure:
        figure = Figure()
        figure.suptitle("costs $1 and $2")
        return figure

    picture, again = (Picture.of("bill", "A bill", draw) for _ in range(2))
    assert (picture.svg, picture.pdf) == (again.svg, again.pdf)
    assert picture.pdf.startswith(b"%PDF")
    svg = picture.svg
    assert b"<svg" in svg
    assert re.search(rb"<!-- costs \$1 and \$2 -->", svg)
