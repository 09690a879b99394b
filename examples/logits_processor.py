"""Use Min-k with llama-cpp-python: `python logits_processor.py MODEL.gguf`.

Not with a grammar or response_format, which llama-cpp-python applies after the processor: use native_sampler.
"""

import sys

from llama_cpp import Llama, LogitsProcessorList

from mink_local import MinK

if len(sys.argv) != 2:
    sys.exit(__doc__)
llama = Llama(sys.argv[1], n_ctx=512, seed=1, verbose=False)
result = llama.create_chat_completion(
    [{"role": "user", "content": "Tell me a story about a lighthouse."}],
    logits_processor=LogitsProcessorList([MinK()]),
    temperature=5.0,
    top_k=0,  # switch off llama-cpp-python's own cuts, which follow the processor
    top_p=1.0,
    min_p=0.0,
    max_tokens=40,
)
print(result["choices"][0]["message"]["content"])
