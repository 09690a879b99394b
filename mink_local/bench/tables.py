"""Tables of `mink-bench`, for the terminal and for README.md: rows of text, the headings first."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mink_local.bench.batch import BatchSpeed
from mink_local.bench.decode import DecodeSpeed
from mink_local.bench.sampler import SamplerCost
from mink_local.samplers import label

if TYPE_CHECKING:
    from mink_local.bench.serve import ServerSpeed

Rows = list[list[str]]


def sampler_table(costs: Sequence[SamplerCost]) -> Rows:
    """Return a row for each method; the first one is the reference."""
    floor = costs[0].select or 0.0
    rows = [["method", "cut µs", "× np.max", "step µs", "llama.cpp µs", "processor µs"]]
    for cost in costs:
        numbers = (cost.select, (cost.select or 0.0) / floor, cost.step, cost.llama_cpp, cost.processor)
        rows.append([label(cost.method), *("" if n is None else f"{n:,.1f}" for n in numbers)])
    return rows


def decode_table(speeds: Sequence[DecodeSpeed]) -> Rows:
    """Return a row for each method in each form."""
    rows = [["method", "form", "tokens/s", "ms/token", "sampling µs", "slowdown", "95% interval"]]
    for speed in speeds:
        interval = f"{speed.slowdown_low:+.1f} … {speed.slowdown_high:+.1f}%"
        numbers = (f"{speed.tokens_per_second:.1f}", f"{speed.ms_per_token:.2f}", f"{speed.sampling_us:.1f}")
        rows.append([label(speed.method), speed.form, *numbers, f"{speed.slowdown:+.1f}%", interval])
    return rows


def batch_table(speeds: Sequence[BatchSpeed]) -> Rows:
    """Return a row for each number of answers at a time."""
    first = f"× {speeds[0].n_parallel} at a time"
    rows = [["answers at a time", "tokens/s", "bare llama_decode", "share of it", first]]
    for speed in speeds:
        numbers = (f"{speed.tokens_per_second:.1f}", f"{speed.bare_tokens_per_second:.1f}")
        rows.append([str(speed.n_parallel), *numbers, f"{100 * speed.share:.1f}%", f"{speed.gain:.2f}"])
    return rows


def serve_table(speeds: "Sequence[ServerSpeed]") -> Rows:
    """Return a row for each server at each number of clients, with ratios if there are several servers."""
    servers = list(dict.fromkeys(speed.server for speed in speeds))
    headings = ["clients", "server", "tokens/s", "CPU ms/token", "ms to first token", "ms between tokens"]
    ratios = [f"tokens/s × {servers[-1]}", f"first token × {servers[-1]}"] if len(servers) > 1 else []
    rows = [[*headings, *ratios]]
    for speed in speeds:
        numbers = (f"{speed.tokens_per_second:.1f}", f"{speed.cpu_ms_per_token:.2f}")
        first = f"{speed.first_token_ms_p50:.0f}/{speed.first_token_ms_p99:.0f}"
        between = f"{speed.between_tokens_ms_p50:.1f}/{speed.between_tokens_ms_p99:.1f}"
        compared = (f"{speed.throughput_ratio:.2f}", f"{speed.first_token_ratio:.2f}") if ratios else ()
        rows.append([str(speed.clients), speed.server, *numbers, first, between, *compared])
    return rows
