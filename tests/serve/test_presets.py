"""Model ids and their presets."""

import pytest

from mink_local.samplers import MinK, TopP
from mink_local.serve.api_errors import ApiError
from mink_local.serve.presets import BUILT_IN, Defaults, Presets

DEFAULT = Defaults(MinK(), 1.5)


def test_the_first_id_is_the_model_and_each_preset_has_one() -> None:
    presets = Presets("qwen3-4b", DEFAULT)
    assert presets.ids == ["qwen3-4b", *(f"qwen3-4b:{name}" for name in BUILT_IN)]
    assert presets.find("qwen3-4b:min-k-t5").defaults == Defaults(MinK(), 5.0)
    assert presets.find("qwen3-4b").defaults == presets.find(None).defaults == DEFAULT


def test_a_presets_sampling_is_fixed_and_the_models_own_only_if_asked() -> None:
    assert Presets("m", DEFAULT).find("m:top-p").is_fixed
    assert not Presets("m", DEFAULT).find("m").is_fixed
    assert Presets("m", DEFAULT, ignore_client_sampling=True).find("m").is_fixed


def test_an_unknown_id_is_not_found_unless_any_is_accepted() -> None:
    with pytest.raises(ApiError, match="there is no model 'gpt-4': this server has m, m:a") as caught:
        Presets("m", DEFAULT, {"a": DEFAULT}).find("gpt-4")
    assert (caught.value.status, caught.value.code, caught.value.param) == (404, "model_not_found", "model")
    assert Presets("m", DEFAULT, any_model=True).find("gpt-4").model_id == "m"


@pytest.mark.parametrize(
    ("text", "defaults"),
    [
        ("min-k", Defaults(MinK(), 1.0)),
        ("min-k:tau=2@5", Defaults(MinK(tau=2.0), 5.0)),
        ("top-p:p=0.8@0.7", Defaults(TopP(0.8), 0.7)),
    ],
)
def test_a_presets_text_has_a_sampler_and_a_temperature(text: str, defaults: Defaults) -> None:
    assert Defaults.parse(text) == defaults
    assert Defaults.parse(str(defaults)) == defaults


@pytest.mark.parametrize("text", ["min-q", "min-k:tau=x@1", "min-k@x", "min-k@-1", "min-k@inf", "min-k@nan"])
def test_a_wrong_presets_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"sampler|tau|temperature"):
        Defaults.parse(text)
