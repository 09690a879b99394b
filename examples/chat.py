"""Chat for two turns, printing answers as they are generated."""

from mink_local import MinK, load_model

messages = [{"role": "system", "content": "You are a poet. Answer in one sentence."}]
with load_model("smollm2-135m") as model:
    for question in ("What is rain?", "And snow?"):
        messages.append({"role": "user", "content": question})
        print(f"> {question}")
        reply = model.chat(messages, sampler=MinK(), temperature=5.0, max_tokens=40, seed=1)
        for piece in reply:
            print(piece, end="", flush=True)
        messages.append(reply.message)
        print(f"\n[{reply.n_tokens} tokens, {reply.evaluated_tokens} new tokens in the prompt]")
