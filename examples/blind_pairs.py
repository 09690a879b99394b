"""Pairs of a run's responses, blind and in random order, for people to compare: pairs.csv, and the key to it.

python examples/blind_pairs.py RUN "min-k:tau=3" "top-p:p=0.9" TEMPERATURE [SEED]

Write 1, 2 or = into the column "better" of pairs.csv; key.csv says which sampler wrote which response.
"""

import csv
import json
import random
import sys
from pathlib import Path

from mink_local import parse

if len(sys.argv) < 5:
    sys.exit(__doc__)
run, temperature, seed = Path(sys.argv[1]), float(sys.argv[4]), (*sys.argv[5:], "0")[0]
one, other = (str(parse(text)) for text in sys.argv[2:4])
questions: dict[tuple[str, str], str] = {}
found: dict[tuple[str, str, str, int], dict[str, str]] = {}
for line in (run / "questions.jsonl").read_text(encoding="utf-8").splitlines():
    question = json.loads(line)
    questions[question["task"], question["question_id"]] = question["prompt"]
for line in (run / "records.jsonl").read_text(encoding="utf-8").splitlines():
    record = json.loads(line)
    if record["sampler"] in (one, other) and record["temperature"] == temperature:
        key = record["model"], record["task"], record["question_id"], record["repeat"]
        found.setdefault(key, {})[record["sampler"]] = record["response"]
pairs = [(key, texts) for key, texts in sorted(found.items()) if len(texts) == 2]
shuffled = random.Random(seed)
with open("pairs.csv", "w", newline="", encoding="utf-8") as sheet, open("key.csv", "w", newline="") as keys:
    rows, key_rows = csv.writer(sheet), csv.writer(keys)
    rows.writerow(["pair", "question", "response 1", "response 2", "better"])
    key_rows.writerow(["pair", "model", "task", "question", "repeat", "response 1", "response 2"])
    for number, (key, texts) in enumerate(shuffled.sample(pairs, len(pairs)), start=1):
        samplers = shuffled.sample((one, other), 2)
        rows.writerow([number, questions[key[1], key[2]], *(texts[sampler] for sampler in samplers), ""])
        key_rows.writerow([number, *key, *samplers])
print(f"{len(pairs)} pairs are in pairs.csv, and the key to them in key.csv")
