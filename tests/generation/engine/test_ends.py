"""A program may end at any moment: beside llguidance's or Numba's start, in `atexit`, while answering."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

PROGRAM = """
import atexit, random, sys, threading, time
choose = random.Random(int(sys.argv[1]))
from mink_local import Constraints, load_model
print("begun", flush=True)
model = load_model(sys.argv[2], n_ctx=256, n_parallel=2, n_threads=1, trust=choose.random() < 0.5)

def schema():
    model.chat("Hi", constraints=Constraints(json_schema={"type": "object"}), max_tokens=40).read()

def read():
    model.chat("Hi", ignore_eos=True, temperature=5.0).read()

uses = [schema, read, lambda: list(model.generate(["Hi"] * 9, max_tokens=3)), lambda: model.logits("Hi" * 99)]
for use in choose.sample(uses, 2):
    threading.Thread(target=use, daemon=True).start()
kept = model.chat("Hi", ignore_eos=True)
if choose.random() < 0.3:
    atexit.register(model.close)
if choose.random() < 0.3:
    atexit.register(lambda: model.chat("Hi", max_tokens=1).read())
time.sleep(choose.random())
if choose.random() < 0.3:
    model.close()
if choose.random() < 0.3:
    raise SystemExit(0)
"""


@pytest.mark.slow
@pytest.mark.posix
def test_a_program_ends_at_any_moment(tiny_path: Path) -> None:
    """By itself, or by Ctrl-C: never by a signal of its own. Nightly, a thousand times."""
    times = 1000 if os.environ.get("HYPOTHESIS_PROFILE") == "nightly" else 4
    first = random.SystemRandom().randrange(2**32) if times > 4 else 0
    for seed in range(first, first + times):
        command = [sys.executable, "-W", "ignore", "-c", PROGRAM, str(seed), str(tiny_path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == b"begun\n"
            if seed % 2:
                time.sleep(random.Random(seed).random())
                child.send_signal(signal.SIGINT)
            try:
                _, said = child.communicate(timeout=60)
            except subprocess.TimeoutExpired:
                child.kill()  # or the block would wait for it
                raise
        assert child.returncode in (0, 1, -signal.SIGINT), (seed, child.returncode, said[-2000:])
        assert b"Fatal" not in said, seed


USES_LATE = """
import atexit, sys
late = []
atexit.register(lambda: [use() for use in late])  # runs after the finalizers of what is imported now
import numpy as np
from mink_local import Constraints, MinK, load_model
from mink_local.llama.constraints import Constrainer
from mink_local.llama.token_sampler import TokenSampler
weights = load_model(sys.argv[1], n_ctx=256, n_threads=1, trust=True).weights
constrainer = Constrainer(Constraints(repeat_penalty=1.5), weights)
sampler = TokenSampler(MinK(), 1.0, 1, weights.n_vocab, constrainer)
row = np.arange(weights.n_vocab, dtype=np.float32)
late.append(lambda: print(*(sampler(row, step) for step in range(3))))
"""


CONSTRAINED_LATE = """
import atexit, sys
from mink_local import Constraints, load_model
model = load_model(sys.argv[1], n_ctx=256, n_threads=1, trust=True)
ask = lambda: print(len(model.chat("Hi", constraints=Constraints(regex="[a-z]{9}")).read()))
[atexit.register(ask) for _ in range(3)]
"""


@pytest.mark.parametrize("program", [USES_LATE, CONSTRAINED_LATE], ids=["sampler", "constraint"])
def test_what_is_used_at_the_end_works(tiny_path: Path, program: str) -> None:
    """A sampler is not freed: a daemon thread that is just making one goes on while the finalizers run.

    And a constrained answer needs no thread for its masks, of which Python starts no more then.
    """
    command = [sys.executable, "-c", program, str(tiny_path)]
    assert len(subprocess.run(command, capture_output=True, check=True).stdout.split()) == 3
