"""GET /metrics, read by a strict parser of Prometheus's text format."""

import re

from mink_local.serve.metrics import Metrics

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*"'
SAMPLE = re.compile(rf"({NAME})(?:\{{((?:{LABEL})(?:,{LABEL})*)\}})? (\+Inf|[0-9.e+-]+)")
KINDS = {"counter": ("",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}

Family = dict[tuple[str, str], float]  # values by the end of the name and the labels


def parse(text: str) -> dict[str, Family]:
    """Return the families of metrics; each line must be as the format wants it."""
    assert text.endswith("\n")
    families: dict[str, Family] = {}
    lines = iter(text.removesuffix("\n").split("\n"))
    name = kind = ""
    for line in lines:
        if line.startswith("# HELP "):
            name = line.split()[2]
            assert name not in families, "a family comes in one group"
            families[name] = {}
            keyword, of, kind = next(lines).removeprefix("# ").split()
            assert (keyword, of) == ("TYPE", name)
            assert kind in KINDS
            assert name.endswith("_total") == (kind == "counter")
            continue
        match = SAMPLE.fullmatch(line)
        assert match, line
        end = match[1].removeprefix(name)
        assert end in KINDS[kind]
        assert (end, match[2] or "") not in families[name]
        families[name][end, match[2] or ""] = float(match[3])
    return families


def text(metrics: Metrics) -> str:
    return metrics.text(running=3, waiting=2, slots=4, busy_slots=3, steps=17)


def test_every_line_is_in_the_format_before_anything_is_counted() -> None:
    families = parse(text(Metrics({"model": "m"}, ["/v1/models"])))
    assert families["mink_slots"] == {("", ""): 4}
    assert families["mink_requests_waiting"] == {("", ""): 2}
    assert families["mink_engine_steps_total"] == {("", ""): 17}
    assert families["mink_responses_total"] == {}
    assert families["mink_token_seconds"]["_count", ""] == 0


def test_responses_are_counted_by_endpoint_and_status_and_unknown_paths_together() -> None:
    metrics = Metrics({}, ["/v1/models"])
    for path, status in [
        ("/v1/models", 200),
        ("/v1/models", 200),
        ("/v1/models", 401),
        ("/a", 404),
        ("/b", 404),
    ]:
        metrics.count_response(path, status)
    assert parse(text(metrics))["mink_responses_total"] == {
        ("", 'endpoint="/v1/models",status="200"'): 2,
        ("", 'endpoint="/v1/models",status="401"'): 1,
        ("", 'endpoint="other",status="404"'): 2,
    }


def test_buckets_of_a_histogram_include_the_smaller_ones_and_their_own_bound() -> None:
    metrics = Metrics({}, [])
    for seconds in (0.001, 0.0011, 0.3, 1e6):
        metrics.count_token(seconds)
    family = parse(text(metrics))["mink_token_seconds"]
    buckets = {labels: count for (end, labels), count in family.items() if end == "_bucket"}
    assert buckets['le="0.001"'] == 1
    assert buckets['le="0.0025"'] == 2
    assert buckets['le="0.25"'] == 2
    assert buckets['le="0.5"'] == 3
    assert buckets['le="2.5"'] == 3
    assert buckets['le="+Inf"'] == 4 == family["_count", ""]
    assert list(buckets.values()) == sorted(buckets.values())
    assert family["_sum", ""] == 0.001 + 0.0011 + 0.3 + 1e6


def test_tokens_are_counted() -> None:
    metrics = Metrics({}, [])
    metrics.count_prompt(100, 60)
    metrics.count_prompt(10, 0)
    metrics.count_first_token(0.2)
    metrics.count_token(0.01)
    metrics.count_token(0.01)
    metrics.count_cancelled()
    families = parse(text(metrics))
    assert families["mink_prompt_tokens_total"] == {("", ""): 110}
    assert families["mink_cached_tokens_total"] == {("", ""): 60}
    assert families["mink_generated_tokens_total"] == {("", ""): 3}
    assert families["mink_requests_cancelled_total"] == {("", ""): 1}
    assert families["mink_first_token_seconds"]["_count", ""] == 1
    assert families["mink_token_seconds"]["_count", ""] == 2


def test_labels_are_escaped() -> None:
    name = 'C:\\models\\"new"\n} 1\nevil 2'
    families = parse(text(Metrics({"model": name}, [])))
    [(_, labels)] = families["mink_info"]
    escaped = labels.removeprefix('model="').removesuffix('"')
    assert re.sub(r"\\(.)", lambda match: {"n": "\n"}.get(match[1], match[1]), escaped) == name
