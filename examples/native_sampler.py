"""Use Min-k with llama-cpp-python and a JSON schema: `python native_sampler.py MODEL.gguf`.

llama-cpp-python applies logits processors before the grammar. This puts Min-k after it, in place of its cuts.
"""

import sys
from typing import Any

import llama_cpp
from llama_cpp._internals import LlamaSampler

from mink_local import MinK, Sampler, native_sampler


class LlamaWith(llama_cpp.Llama):  # type: ignore[misc]
    """A `Llama` that samples with a sampler of mink-local's."""

    sampler: Sampler = MinK()

    def _init_sampler(self, *_: Any, temp: float = 0.8, grammar: Any = None, **__: Any) -> LlamaSampler:
        chain = LlamaSampler()
        if grammar is not None:
            chain.add_grammar(self._model, grammar)
        own = native_sampler(self.sampler, self.n_vocab(), temp)
        llama_cpp.llama_sampler_chain_add(chain.sampler, own)
        chain.add_temp(temp)
        chain.add_dist(self._seed)
        return chain


if len(sys.argv) != 2:
    sys.exit(__doc__)
llama = LlamaWith(sys.argv[1], n_ctx=512, seed=1, verbose=False)
result = llama.create_chat_completion(
    [{"role": "user", "content": "Describe a city, as JSON."}],
    response_format={"type": "json_object"},
    temperature=5.0,
    max_tokens=80,
)
print(result["choices"][0]["message"]["content"])
