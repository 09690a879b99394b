"""Backend sampling: tokens are sampled inside llama.cpp's compute graph, on the device that has the logits.

`llama_set_sampler` attaches a chain of samplers to a sequence, and the host receives a token and one float32
instead of a row of logits. Greedy, top-k, top-p, min-p, temperature and `dist` are llama.cpp's own; Min-k is
built here. Python runs only while llama.cpp builds its graph: when a chain is attached, and when the batch
shape changes.

    raw logits (V,) -> first stage -> [temp] -> truncation -> [temp] -> dist -> report stage -> token, k
                       clamp; Min-k   llama.cpp's, except Min-k

A graph has fixed shapes and float32 arithmetic, so it cannot decide every row. The report stage returns one
float32 in place of the probabilities, which llama.cpp copies to the host:

    k    the token is one of the k candidates that this graph kept
    0    a tie at the cutoff, a token that was not kept, or more candidates than Min-k sorts
    NaN  a logit, a threshold or a probability is not finite

Without a k, `BackendSampler.next` returns None, and the caller samples the token on the host. Min-k, greedy
and top-k keep exactly what their kernels keep. For top-p and min-p, float32 rounding moves the threshold: a
token within 1e-4 of it may be kept here but not by the kernel.
"""

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from llama_cpp import llama_cpp as C

from mink_local.errors import GenerationError
from mink_local.llama.context import Context
from mink_local.llama.graph import Graph, Node, supported
from mink_local.samplers import Greedy, MinK, MinP, Sampler, TopK, TopP

WIDTH = 1024  # logits Min-k sorts: one CUDA block of ggml's argsort; real rows need at most 286
MARGIN = 4e-6  # relative; more than five times the error of float32 and CUDA's fast division
EPSILON = 1e-8  # as in the paper's R + 1e-8
_LARGE = 3e38  # below the largest float32: CUDA's argmax finds nothing at or below its negative
_SMALL = 1e-30  # far above the float32s that a device flushes to 0
_PROBE = 128 * 1024  # logits in the graph used to probe a device, as many as llama.cpp uses
_MAX_NODES = 256  # in that graph


@dataclass(frozen=True)
class Kept:
    """Output nodes of Min-k for one row of logits.

    The last entry is always kept: `dist` falls back to it if rounding leaves the cumulative sum below the
    random number.
    """

    logits: Node  # float32 (n,), ascending, -inf for tokens not kept
    ids: Node  # int32 (n,), the token ids
    k: Node  # float32 (1,), how many are kept; 0 or NaN if float32 cannot decide as the kernel does


def min_k(sampler: MinK, row: Node) -> Kept:
    """Add the nodes of Min-k (section 3 of the paper) for a row's WIDTH largest logits, all finite.

    ggml sorts in ascending order, so rank 1, the largest logit, is the last entry:

        entry     0      1      2     ...   n-2    n-1
        rank      n     n-1    n-2    ...    2      1
        drop         n-1    n-2       ...       1        after rank i, at entry n - 1 - i
        kept    -inf   -inf   -inf    ...  logit  logit
    """
    n = min(WIDTH, row.size)
    unordered = row.top(n)
    largest = row.at(unordered)
    order = largest.ascending()
    ids, logits = unordered.at(order), largest.at(order)
    smallest = row.at((-row).argmax())
    rank = row.countdown(n - 1)
    weights = (logits.view(1, n - 1) - logits.view(0, n - 1)) / rank
    cliff = weights.argmax()
    k = rank.at(cliff)

    # A weight this close to the largest could be the largest in float64. If all logits are equal, no weight
    # is above the limit, and the next two conditions contradict each other.
    limit = weights.at(cliff).scale(1 - MARGIN)
    no_rival = _is_below((weights - limit).step().sum(), 1.5)
    # Beyond rank n, no weight exceeds the whole range divided by n (the kernel's bound).
    largest_behind = (logits.view(0, 1) - smallest).scale(1 / n)
    none_behind = (limit - largest_behind).step()
    certain = no_rival * none_behind + limit.scale(0)  # NaN if the limit is not finite

    # Bounds on the fallback's number of tokens, since float32 rounds.
    bounds: list[tuple[Node, Node]] = []
    if sampler.tau > 0:
        spread = (logits.view(n - 1, 1) - smallest).scale(1, EPSILON)
        quotient = spread.scale(0, sampler.tau) / spread
        bounds.append((quotient.scale(1 - MARGIN).floor(), quotient.scale(1 + MARGIN).floor()))
    if sampler.floor > 0:
        from_largest = logits - logits.view(n - 1, 1)  # at most 0
        inner, outer = (from_largest.scale(1, sampler.floor * x) for x in (1 - MARGIN, 1 + MARGIN))
        bounds.append((inner.step().sum(), outer.step().sum()))
    for at_least, at_most in bounds:
        is_decided, is_sorted = _is_below(at_most - at_least, 0.5), _is_below(at_most, n - 0.5)
        k = k.maximum(at_least)
        certain = certain * is_decided * is_sorted
    if bounds:
        drop_after_k = weights.at(k.scale(-1, n - 1).clamp(0, n - 2).integer())
        certain = certain * drop_after_k.step()  # no tie there

    is_kept = (logits.countdown(n) - k).scale(-1, 0.5).step()
    return Kept(logits + is_kept.log(), ids, k * certain)  # log: 0 for 1, -inf for 0


def has_backend_form(sampler: Sampler) -> bool:
    """Return whether a sampler can run in the graph; variants of Min-k, for example, cannot."""
    if isinstance(sampler, TopK):
        return sampler.k <= _PROBE  # llama.cpp aborts the process if k exceeds the vocabulary
    if isinstance(sampler, MinK):
        is_floor_in_range = sampler.floor == 0 or _SMALL <= sampler.floor <= _LARGE
        return sampler == MinK(sampler.tau, sampler.floor) and sampler.tau <= _LARGE and is_floor_in_range
    return isinstance(sampler, Greedy | TopP | MinP)


class BackendSampler:
    """Samples the tokens of one sequence of a context inside llama.cpp's compute graph.

    From `attach` to `detach`, or until another sampler is attached, the context has no logits for the
    sequence. Each output of the sequence consumes a random number, so a seed reproduces a text only if the
    prompt's last token is its only output.

    Args:
        sampler: A sampler with a backend form.
        temperature: > 0.

    Attributes:
        k: Number of candidates for the last token.
    """

    def __init__(
        self, sampler: Sampler, temperature: float, seed: int, context: Context, seq_id: int = 0
    ) -> None:
        self.k = 0
        self._sampler, self._context, self._seq_id = sampler, context, seq_id
        self._chain = _SamplerChain(sampler, temperature, seed, context.n_vocab)
        # The finalizer holds context and chain: a chain must be detached before it is freed.
        self._release = weakref.finalize(self, _release, context, self._chain, seq_id)

    def attach(self) -> None:
        """Attach the sampler to the sequence.

        Raises:
            GenerationError: The device lacks an operation, or the nodes could not be built.
        """
        self._context.attach(self._chain.handle, self._seq_id)
        self._check()
        if not self._chain.offloaded:
            self.detach()
            raise GenerationError(f"this device lacks an operation of the backend form of {self._sampler}")

    def detach(self) -> None:
        """Make the context return logits again. The sampler cannot be attached a second time."""
        self._release()

    def next(self, output: int = -1) -> int | None:
        """Return the token sampled for an output of the last batch, or None if the graph cannot decide.

        Args:
            output: As for `Context.logits`.

        Raises:
            GenerationError: The nodes could not be built, or no sampler is attached.
        """
        self._check()
        token, k = self._context.sampled(output)
        if not k > 0:  # also true of NaN
            return None
        self.k = round(k)
        return token

    def _check(self) -> None:
        if self._chain.error is not None:
            raise GenerationError("cannot build the sampler into the graph") from self._chain.error


def _release(context: Context, chain: "_SamplerChain", seq_id: int) -> None:
    context.detach(chain.handle, seq_id)
    C.llama_sampler_free(chain.handle)


class _SamplerChain:
    """A llama_sampler_chain: first stage, llama.cpp's samplers, report stage; its creator frees it."""

    def __init__(self, sampler: Sampler, temperature: float, seed: int, n_vocab: int) -> None:
        self.offloaded = False  # whether llama.cpp took the whole chain into the graph on attaching it
        self.error: BaseException | None = None  # raised in a callback; it cannot pass through C
        self._sampler = sampler
        # The first stage's nodes, for the same graph's report stage: row, 0 if it is finite, Min-k's.
        self._state: tuple[Node, Node, Kept | None] | None = None
        first = self._stage(self._supported, self._begin)
        report = self._stage(self._complete, self._report)
        self.handle = C.llama_sampler_chain_init(C.llama_sampler_chain_default_params())
        self._interfaces = first, report  # llama.cpp holds pointers to them
        for handle in (
            C.llama_sampler_init(first, None),
            *_llama_cpp_samplers(sampler, temperature, n_vocab),
            C.llama_sampler_init_dist(seed),
            C.llama_sampler_init(report, None),
        ):
            C.llama_sampler_chain_add(self.handle, handle)

    def _stage(self, prepare: Callable[[int], bool], build: Callable[[int, Any], None]) -> Any:
        """Return the C interface of a llama_sampler that only adds nodes to a graph."""

        def init(_: Any, buffer_type: int, __: int) -> bool:
            try:
                return prepare(buffer_type)
            except BaseException as error:
                self.error = error
                return False

        def apply(_: Any, graph: int, __: int, data: Any) -> None:
            try:
                build(graph, data.contents)
            except BaseException as error:
                self.error = error

        return C.llama_sampler_i(
            backend_init=C.llama_sampler_i_backend_init(init),
            backend_apply=C.llama_sampler_i_backend_apply(apply),
        )

    def _supported(self, buffer_type: int) -> bool:
        """Return whether the logits' device supports every operation of both stages."""
        with Graph(_MAX_NODES) as graph:
            row = Node.new(graph.context, _PROBE)
            data = C.llama_sampler_data(logits=row.pointer, probs=row.pointer, sampled=row.argmax().pointer)
            self._begin(graph.context, data)
            for tensor in filter(None, (data.logits, data.candidates)):
                graph.expand(Node.wrap(graph.context, tensor))
            self._report(graph.context, data)
            graph.expand(Node.wrap(graph.context, data.probs))
            return supported(buffer_type, graph)

    def _complete(self, _: int) -> bool:
        # llama.cpp gets here only if all earlier samplers can run on the device.
        self.offloaded = True
        return True

    def _begin(self, graph: int, data: Any) -> None:
        """Make the logits finite, then set those that Min-k does not keep to -inf."""
        self._state = None  # if this fails, the report stage must not find another graph's state
        raw = Node.wrap(graph, data.logits)
        row = raw.clamp(-_LARGE, _LARGE)  # a NaN becomes one of the two: no sort or argmax sees it
        zero_if_finite = raw.sum().scale(0)  # 0 times a non-finite sum is NaN
        kept = min_k(self._sampler, row) if isinstance(self._sampler, MinK) else None
        data.logits = kept.logits.pointer if kept else row.pointer
        data.candidates = kept.ids.pointer if kept else None
        self._state = row, zero_if_finite, kept

    def _report(self, graph: int, data: Any) -> None:
        """Replace the probabilities by the report, and keep anything else from being copied to the host."""
        if self._state is None:
            return
        row, zero_if_finite, kept = self._state
        if kept:
            report = kept.k
        else:
            ids = Node.wrap(graph, data.candidates) if data.candidates else None
            report = _count(row, Node.wrap(graph, data.logits), ids, Node.wrap(graph, data.sampled))
        # A softmax that overflows, or is wrong on a device, yields NaN; `dist` then takes the last entry.
        zero_if_numbers = Node.wrap(graph, data.probs).sum().scale(0)
        data.probs = (report + zero_if_finite + zero_if_numbers).pointer
        data.logits = data.candidates = None


def _llama_cpp_samplers(sampler: Sampler, temperature: float, n_vocab: int) -> list[Any]:
    """Return new llama.cpp samplers for temperature and truncation, in the sampler's order."""
    if isinstance(sampler, Greedy):
        return [C.llama_sampler_init_temp(0)]  # keeps the largest logit
    temp = C.llama_sampler_init_temp(max(temperature, _SMALL))  # 0 would mean greedy
    if isinstance(sampler, TopK):
        return [C.llama_sampler_init_top_k(min(sampler.k, n_vocab)), temp]
    if isinstance(sampler, TopP | MinP):
        init = C.llama_sampler_init_top_p if isinstance(sampler, TopP) else C.llama_sampler_init_min_p
        truncation = init(sampler.p, 1)
        return [temp, truncation] if sampler.order == "temperature-first" else [truncation, temp]
    return [temp]


def _count(row: Node, left: Node, ids: Node | None, sampled: Node) -> Node:
    """Return how many logits llama.cpp kept, or 0 if the kernel might keep others.

    A tie at the cutoff may be broken differently than in the kernel. And `dist` falls back to the last entry,
    kept or not, if rounding leaves the cumulative sum below the random number.

    `left` is what llama.cpp left of the row (V,), divided by temperature, with -inf for tokens not kept;
    `ids` holds the tokens of `left`, or is None if these are all tokens in order.
    """
    is_kept = left.scale(1, _LARGE).step()
    k = is_kept.sum()
    logits = row.at(ids) if ids else row
    # Negated logits, with the most negative number in place of the -inf of tokens not kept.
    negative = (is_kept.log() - logits).clamp(-_LARGE, _LARGE)
    smallest_kept = logits.at(negative.argmax())
    n_reaching = (row - smallest_kept).scale(-1).step().sum().scale(-1, row.size)
    no_tie = _is_below(n_reaching - k, 0.5)
    is_candidate = _is_below((smallest_kept - row.at(sampled)).step(), 0.5)
    return k * no_tie * is_candidate


def _is_below(value: Node, limit: float) -> Node:
    return value.scale(-1, limit).step()
