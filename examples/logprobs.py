"""Print the probability of every sampled token, and the most probable tokens at each step."""

from math import exp

from mink_local import MinK, load_model

messages = [{"role": "user", "content": "Name a colour of the sky."}]
with load_model("smollm2-135m", n_ctx=256) as model:
    for piece in model.chat(messages, sampler=MinK(), temperature=5.0, max_tokens=12, logprobs=3, seed=4):
        if piece.token is not None and piece.logprob is not None:
            text = model.detokenize([piece.token])
            top = ", ".join(
                f"{model.detokenize([token])!r} {exp(logprob):.3f}" for token, logprob in piece.top_logprobs
            )
            print(f"{text!r} {exp(piece.logprob):.3f}, one of {piece.k}; most probable: {top}")
