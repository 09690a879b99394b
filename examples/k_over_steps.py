"""Min-k's k over the steps of a text's continuations, and what decided it: the cliff or the fallback.

python examples/k_over_steps.py TEXT [MODEL]    (the paper's Figure 6, as CSV)
"""

import csv
import sys
from pathlib import Path

from numpy import float32
from numpy.typing import NDArray

from mink_local import MinK, Request, SamplingParams, load_model

N_PROMPT, TEMPERATURES = 64, (1.0, 2.0, 5.0)
if len(sys.argv) < 2:
    sys.exit(__doc__)
text, name = sys.argv[1], (*sys.argv[2:], "smollm2-135m")[0]
cliff_alone = MinK(tau=0)  # keeps what is before the cliff
table = csv.writer(sys.stdout)
table.writerow(["temperature", "steps", "mean k", "largest k", "% k = 1", "% decided by the fallback"])
with load_model(name, n_ctx=512, n_parallel=len(TEMPERATURES)) as model:
    prompt = model.prompt_tokens(Path(text).read_text(encoding="utf-8"))[:N_PROMPT]
    cliffs: dict[float, list[int]] = {temperature: [] for temperature in TEMPERATURES}

    def request(temperature: float) -> Request:
        def watch(logits: NDArray[float32]) -> None:  # in the model's thread, before each token
            cliffs[temperature].append(cliff_alone.cutoff(logits))

        params = SamplingParams(sampler=MinK(), temperature=temperature, max_tokens=128, seed=1)
        return Request(prompt, params, watch=watch)

    for answer in model.answer_all(map(request, TEMPERATURES), ordered=True):
        temperature, k, n = answer.request.params.temperature, answer.k, max(1, answer.n_tokens)
        more = sum(size > cliff for size, cliff in zip(k, cliffs[temperature], strict=False))
        ones = k.count(1)
        row = [temperature, answer.n_tokens, sum(k) / n, max(k, default=0), 100 * ones / n, 100 * more / n]
        table.writerow([round(value, 2) for value in row])
