"""GGUF models in lm-evaluation-harness: the real library, on a few documents of tasks in local files."""

import functools
import json
import os
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from mink_local.errors import MinkError
from mink_local.generation.model import Model
from mink_local.samplers import Chain, Greedy, MinK, MinP, Mirostat, TopK, TopP
from tests.support.mink_eval import MINK_EVAL
from tests.support.python import output_of

lm_eval = pytest.importorskip("lm_eval", reason="lm-evaluation-harness is not installed")

pytestmark = pytest.mark.filterwarnings("ignore")  # of the libraries that the harness imports

CAPITALS: list[dict[str, Any]] = [
    {"question": "The capital of France is", "choices": ["Paris", "a cat", "seven"], "answer": 0},
    {"question": "Two and two make", "choices": ["a boat", "four", "Monday"], "answer": 1},
    {"question": "Snow is", "choices": ["hot", "loud", "white"], "answer": 2},
    {"question": "Fish live in", "choices": ["water", "fire", "books"], "answer": 0},
]
TEXTS = [
    {"text": "The lighthouse keeper walked down to the harbour every morning, whatever the weather."},
    {"text": "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12"},
]
SUMS = [{"question": f"What is {a} plus {a}?", "answer": str(2 * a)} for a in (1, 2, 5, 10)]

MULTIPLE_CHOICE = """
task: local_capitals
dataset_path: json
dataset_kwargs: {{data_files: {{test: {folder}/capitals.jsonl}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{answer}}}}"
metric_list: [{{metric: acc}}, {{metric: acc_norm}}]
"""
ROLLING = """
task: local_texts
dataset_path: json
dataset_kwargs: {{data_files: {{test: {folder}/texts.jsonl}}}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{{{text}}}}"
metric_list: [{{metric: word_perplexity}}, {{metric: bits_per_byte}}]
"""
GENERATION = """
task: local_sums
dataset_path: json
dataset_kwargs: {{data_files: {{test: {folder}/sums.jsonl}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{answer}}}}"
generation_kwargs: {{until: ["\\n\\n"], max_gen_toks: 24}}
metric_list: [{{metric: exact_match}}]
"""


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tasks as their authors write them: YAML beside JSON Lines."""
    folder = tmp_path_factory.mktemp("tasks")
    for name, rows in (("capitals", CAPITALS), ("texts", TEXTS), ("sums", SUMS)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, yaml in (("capitals", MULTIPLE_CHOICE), ("texts", ROLLING), ("sums", GENERATION)):
        (folder / f"{name}.yaml").write_text(yaml.format(folder=folder))
    return folder


def samples(tasks: Path, name: str, chat: bool = False, **arguments: Any) -> list[dict[str, Any]]:
    """Return what the harness logs of every document of a task."""
    from mink_local.evals.lm_eval import MinkLM

    results = lm_eval.simple_evaluate(
        model=MinkLM(threads=1, **arguments),
        tasks=[name],
        task_manager=lm_eval.tasks.TaskManager(include_path=str(tasks), include_defaults=False),
        apply_chat_template=chat,
        log_samples=True,
        bootstrap_iters=0,
    )
    return sorted(results["samples"][name], key=lambda row: row["doc_id"])


def logprob(model: Model, context: list[int], continuation: list[int]) -> tuple[float, bool]:
    """Return the logprob of a continuation, computed alone, and if greedy sampling would generate it."""
    (scored,) = model.logprobs([(context, continuation)], n_parallel=1)
    return scored.total, scored.is_greedy


def test_multiple_choice(tasks: Path, smollm2: Model) -> None:
    """The log-probability of every choice is that of the plain computation, and so is what is picked."""
    rows = samples(tasks, "local_capitals")
    assert sum(row["acc"] for row in rows) >= 2
    for row, document in zip(rows, CAPITALS, strict=True):
        for choice, ((logged, greedy),) in zip(document["choices"], row["resps"], strict=True):
            context = smollm2.prompt_tokens(document["question"])
            whole = smollm2.prompt_tokens(f"{document['question']} {choice}")
            expected, is_greedy = logprob(smollm2, context, whole[len(context) :])
            assert float(logged) == pytest.approx(expected, rel=0.05, abs=0.3)
            assert str(greedy) == str(is_greedy)


@pytest.mark.parametrize("n_ctx", [512, pytest.param(8, marks=pytest.mark.slow)])
def test_perplexity_of_whole_texts(tasks: Path, smollm2: Model, n_ctx: int) -> None:
    """In one window, and in windows that are shorter than the text."""
    bos = smollm2.prompt_tokens(smollm2.weights.bos)
    rows = samples(tasks, "local_texts", n_ctx=n_ctx)
    for row, document in zip(rows, TEXTS, strict=True):
        tokens = smollm2.prompt_tokens(document["text"])
        expected = 0.0
        for start in range(0, len(tokens), n_ctx):
            end = min(start + n_ctx, len(tokens))
            before = [*bos, *tokens][:end][-n_ctx:] if start else bos
            context = before[: len(before) - (end - start) + 1] if start else bos
            expected += logprob(smollm2, context, tokens[start:end])[0]
        ((logged,),) = row["resps"]
        assert float(logged) == pytest.approx(expected, rel=0.03, abs=0.5)


@pytest.mark.slow
def test_generation_is_greedy_unless_told(tasks: Path, smollm2: Model) -> None:
    rows = samples(tasks, "local_sums", chat=True)
    for row, document in zip(rows, SUMS, strict=True):
        messages = [{"role": "user", "content": document["question"]}]
        expected = smollm2.chat(messages, temperature=0.0, max_tokens=24, stop=["\n\n"]).read()
        ((logged,),) = row["resps"]
        assert logged == expected


def test_generation_with_a_sampler_of_ours(tasks: Path, tiny_path: Path) -> None:
    hot: dict[str, Any] = {"model": str(tiny_path), "sampler": "min-k", "temperature": 5}
    texts = [
        [row["resps"][0][0] for row in samples(tasks, "local_sums", chat=True, seed=seed, **hot)]
        for seed in (1, 1, 2)
    ]
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.slow
def test_the_command_is_the_harnesss_own(tasks: Path) -> None:
    out = tasks / "out"
    options = {"--model_args": "model=smollm2-135m,sampler=min-k,temperature=5,threads=1"}
    options |= {
        "--tasks": "local_sums",
        "--include_path": str(tasks),
        "--limit": "2",
        "--output_path": str(out),
    }
    arguments = [text for option in options.items() for text in option]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(tasks / "cache")}
    command = [*MINK_EVAL[1:], "lm-eval", *arguments, "--apply_chat_template", "--log_samples"]
    assert "local_sums" in output_of(*command, env=environment)
    (logged,) = out.rglob("samples_*.jsonl")
    assert len(logged.read_text().splitlines()) == 2


@pytest.fixture(scope="module")
def make_lm(tiny_path: Path) -> Callable[..., Any]:
    """`make_lm(**arguments)` loads a small model for the harness."""
    from mink_local.evals.lm_eval import MinkLM

    return functools.partial(MinkLM, model=str(tiny_path), threads=1, n_ctx=64, max_gen_toks=16)


@pytest.fixture(scope="module")
def lm(make_lm: Callable[..., Any]) -> Any:
    return make_lm()


@pytest.mark.parametrize(
    ("arguments", "options", "expected"),
    [
        # what a task asks for
        ({}, {}, (Greedy(), 0.0)),
        ({}, {"do_sample": False, "temperature": 0.7}, (Greedy(), 0.0)),
        ({}, {"temperature": 0.0}, (Greedy(), 0.0)),
        ({}, {"do_sample": True, "temperature": 0.6, "top_p": 0.95}, (TopP(0.95), 0.6)),
        ({}, {"do_sample": True, "temperature": 0.6, "top_k": -1}, (TopP(1.0), 0.6)),
        ({}, {"temperature": 0.8}, (TopP(1.0), 0.8)),
        ({}, {"temperature": 0.8, "top_p": 1.0, "min_p": 0.2}, (MinP(0.2), 0.8)),
        ({}, {"temperature": 0.8, "min_k_tau": 4, "min_k_floor": 1}, (MinK(4, 1), 0.8)),
        ({}, {"temperature": 0.8, "top_p": 0.9, "top_k": 20}, (Chain(TopK(20), TopP(0.9)), 0.8)),
        ({}, {"temperature": 0.8, "top_k": 20, "mirostat": 2}, (Chain(TopK(20), Mirostat(version=2)), 0.8)),
        # the user's choice comes first
        ({"sampler": "min-k"}, {}, (MinK(), 1.0)),
        ({"sampler": "min-k"}, {"do_sample": True, "temperature": 3.0}, (MinK(), 3.0)),
        ({"sampler": "min-k", "temperature": 5}, {"temperature": 0.0}, (MinK(), 5.0)),
        ({"sampler": "min-k", "floor": 1}, {}, (MinK(floor=1.0), 1.0)),
        # split at its comma by the harness
        ({"sampler": "top-p:p=0.5", "order": "temperature-last"}, {}, (TopP(0.5, "temperature-last"), 1.0)),
    ],
)
def test_sampling(
    make_lm: Callable[..., Any],
    arguments: dict[str, Any],
    options: dict[str, Any],
    expected: tuple[object, float],
) -> None:
    params = make_lm(**arguments).request(0, "Hello", options).params
    assert (params.sampler, params.temperature) == expected


def test_an_option_of_a_task_that_no_sampler_takes(lm: Any) -> None:
    with pytest.raises(MinkError, match="sampler="):
        lm.request(0, "Hello", {"temperature": 0.8, "top_p": 5})


def test_a_prompt_that_is_too_long_loses_its_beginning(lm: Any) -> None:
    request = lm.request(0, "one two three " * 100 + "end", {"max_gen_toks": 16, "until": "."})
    assert len(request.prompt) + request.params.max_tokens == lm.max_length
    assert request.prompt == lm.tok_encode("one two three " * 100 + "end")[-len(request.prompt) :]
    assert request.params.stop == ["."]


@pytest.mark.parametrize("wanted", [64, 65, 4096])
def test_an_answer_that_leaves_no_room_for_a_prompt_is_refused(lm: Any, wanted: int) -> None:
    with pytest.raises(MinkError, match="n_ctx"):
        lm.request(0, "Hello", {"max_gen_toks": wanted})
    assert lm.request(0, "Hello", {"max_gen_toks": 63}).params.max_tokens == 63


def test_cut_prompts_are_counted(make_lm: Callable[..., Any], caplog: pytest.LogCaptureFixture) -> None:
    texts = ["word " * 99, "Hello", "word " * 98]
    options = {"max_gen_toks": 2}
    make_lm().generate_until([lm_eval.api.instance.Instance("", {}, (text, options), 0) for text in texts])
    assert [record.args for record in caplog.records if record.name == "mink_local"] == [(2,)]


def test_the_extra_alone_suffices() -> None:
    """The libraries of the extra "eval" are not needed."""
    program = (
        "import sys\n"
        "sys.modules |= dict.fromkeys(['math_verify', 'matplotlib', 'msgspec', 'openai', 'statsmodels'])\n"
        "import mink_local.evals.lm_eval"
    )
    output_of("-c", program)


def test_a_text_that_has_its_first_token_gets_no_second_one(lm: Any, smollm2: Model) -> None:
    bos = smollm2.weights.bos
    assert lm.tok_encode(bos + "Hello") == [lm.prefix_token_id, *lm.tok_encode("Hello", False)]


def test_chat_templates(lm: Any) -> None:
    history = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "The answer is"}]
    assert lm.apply_chat_template(history[:1]).endswith("<|im_start|>assistant\n")
    assert lm.apply_chat_template(history, False).endswith("<|im_start|>assistant\nThe answer is")
    assert "im_start" in lm.chat_template(True)
    assert lm.tokenizer_name.startswith("tiny-")


def test_another_chat_template(make_lm: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "template.jinja").write_text("{{ messages[0].content }}!")
    lm = make_lm(chat_template_file=str(tmp_path / "template.jinja"))
    assert lm.apply_chat_template([{"role": "user", "content": "Hi"}]) == "Hi!"
    assert lm.get_model_info()["model_template_sha256"] == sha256(b"{{ messages[0].content }}!").hexdigest()


def test_the_results_name_the_file_and_the_sampler(make_lm: Callable[..., Any], tiny_path: Path) -> None:
    info = make_lm(sampler="min-k", temperature=2).get_model_info()
    assert info["model_sha256"] == sha256(tiny_path.read_bytes()).hexdigest()
    assert (info["model_sampler"], info["model_temperature"]) == ("min-k:tau=3", 2.0)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"pretrained": "gpt2"}, "pretrained"),
        ({"sampler": "min-q"}, "min-q"),
        ({"model": "nobody"}, "nobody"),
        ({"threads": 0}, "n_threads"),
        ({"seed": 2**32 - 1}, "seed"),
        ({"chat_template_file": "nowhere.jinja"}, "nowhere.jinja"),
    ],
)
def test_bad_arguments(make_lm: Callable[..., Any], arguments: dict[str, Any], complaint: str) -> None:
    with pytest.raises(MinkError, match=complaint):
        make_lm(**arguments)


def test_a_broken_model_ends_with_a_sentence(make_lm: Callable[..., Any], tiny: Callable[..., Path]) -> None:
    broken = make_lm(model=str(tiny(scale=float("nan"))))
    instance = lm_eval.api.instance.Instance("generate_until", {}, ("Hello", {}), 0)
    with pytest.raises(MinkError, match="NaN"):
        broken.generate_until([instance])
