"""Answer many prompts, several at a time."""

from mink_local import MinK, load_model

animals = ["a cat", "a whale", "an owl", "a snail", "a horse", "a bee"]
prompts = [f"Describe {animal} in one sentence." for animal in animals]
with load_model("smollm2-135m", n_ctx=128, n_parallel=4) as model:
    answers = model.generate(prompts, sampler=MinK(), temperature=2.0, max_tokens=32, seed=1)
    for animal, answer in zip(animals, answers, strict=True):
        print(f"{animal}: {answer.text!r} ({answer.finish_reason})")
