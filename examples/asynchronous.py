"""Generate inside asyncio, and cancel an answer that takes too long."""

import asyncio

from mink_local import MinK, Model, load_model


async def answer(model: Model, question: str) -> None:
    async for piece in model.chat(question, sampler=MinK(), temperature=5.0, seed=1, ignore_eos=True):
        print(piece, end="", flush=True)


async def main() -> None:
    with load_model("smollm2-135m", n_ctx=2048) as model:
        try:
            await asyncio.wait_for(answer(model, "Tell me a long story."), timeout=3)
        except TimeoutError:
            print("\n[cancelled after three seconds; the model can be asked again]")
        print(model.chat("Say hello.", max_tokens=10, seed=1).read())


asyncio.run(main())
