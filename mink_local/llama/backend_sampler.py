"""The graph form of a sampler: the cut as nodes of llama.cpp's own compute graph.

The cut becomes the first sampler of a chain that `llama_set_sampler` attaches to a sequence; llama.cpp's
`temp` and `dist` follow it, and the token is read from `llama_get_sampled_token_ith`. Where the output
layer is on a GPU all of that runs there, and the host receives a token and one float32. Python is called
only while llama.cpp builds the graph: when a sampler is attached and when the shape of a batch changes.

Shapes in a graph are fixed and its arithmetic is float32, so a cut is given together with a number
that says whether it can be relied on. Where it cannot (a tie or a near-tie, a logit that is not finite,
more candidates than the graph looks at) `BackendSampler.next` says so and the step is done on the host. For
min-k, greedy and top-k no token is ever taken from a cut that might differ from the kernel's; for the
others, which keep what reaches a threshold, a token within float32 rounding of it may be on either side.
"""

import ctypes
import math
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from llama_cpp import llama_cpp as C

from mink_local.errors import GenerationError
from mink_local.llama.context import Context
from mink_local.llama.ggml import Node, Scratch, supported
from mink_local.samplers import Eta, Greedy, MinK, MinP, PLess, Sampler, TopK, TopNSigma, TopP

WIDTH = 1024  # logits that are sorted: what ggml sorts in one CUDA block; the walk needs at most 286
MARGIN = 4e-6  # relative; float32 and CUDA's fast division are wrong by less than a fifth of that
EPSILON = 1e-8  # of the paper's R + 1e-8
_TINY = 1e-30  # a mass that the largest of all tokens has above it
_LARGE = 3e38  # below the largest float32, above which CUDA's argmax finds nothing
_PROBE = 128 * 1024  # logits in the graph that a device is asked about; llama.cpp uses as many
_MAX_NODES = 256  # of that graph


@dataclass(frozen=True)
class Cut:
    """What a graph leaves of one row of logits.

    logits, ids: float32 and int32 (n,), -inf where a token does not stand. The last one always
        stands: it is what `dist` takes where its sum of probabilities stays short of its random number.
        Without ids the logits are those of all tokens in order, and the last one may not stand.
    k: how many stand; certain: 1 if that is what the kernel would keep, else 0. One float32 each.
    """

    logits: Node
    ids: Node | None
    k: Node
    certain: Node


def min_k(sampler: MinK, row: Node, temperature: float) -> Cut:  # noqa: ARG001
    """Min-k (section 3 of the paper) on the WIDTH largest logits.

    The cliff is certain if no weight comes within MARGIN of it, which excludes a tie, and no position
    behind the last one looked at could outweigh it (the bound of `kernels`). The fallback is certain if
    tau / R is not within MARGIN of a whole number, is below WIDTH and does not part equal logits.
    """
    row = row.clamp(-_LARGE, _LARGE)
    n = min(WIDTH, row.size)
    ids, logits = _largest(row, n)
    smallest = row.at((-row).argmax())
    position = row.countdown(n - 1)
    weights = (logits.view(0, n - 1) - logits.view(1, n - 1)) / position
    heaviest = weights.argmax()
    k = -position.at(heaviest)
    limit = weights.at(heaviest).scale(1 - MARGIN)
    rivals = (weights - limit).step().sum()  # 1 is the cliff itself; 0 if all logits are equal
    bound = (logits.view(0, 1) - smallest).scale(1 / n)
    certain = (limit - bound).step() * rivals.scale(-1, 1.5).step()
    if sampler.tau > 0:
        spread = (logits.view(n - 1, 1) - smallest).scale(1, EPSILON)
        fallback = spread.scale(0, min(sampler.tau, _LARGE)) / spread
        low, high = fallback.scale(1 - MARGIN).floor(), fallback.scale(1 + MARGIN).floor()
        certain = certain * (high - low).scale(-1, 0.5).step() * high.scale(-1, n - 0.5).step()
        k = k.maximum(low)
        behind_k = k.scale(-1, n - 1).clamp(0, n - 2).integer()
        certain = certain * weights.at(behind_k).step()
    return Cut(_keep(logits, k), ids, k, certain)


def greedy(sampler: Greedy, row: Node, temperature: float) -> Cut:  # noqa: ARG001
    """The largest logit; certain if it is the only one of its size."""
    row = row.clamp(-_LARGE, _LARGE)
    ids = row.argmax()
    largest = row.at(ids)
    smaller = (row - largest).scale(-1).step().sum()
    return Cut(largest, ids, largest.scale(0, 1), smaller.scale(1, 1.5 - row.size).step())


def top_k(sampler: TopK, row: Node, temperature: float) -> Cut:  # noqa: ARG001
    """Certain if the last one kept is larger than the first one dropped."""
    row = row.clamp(-_LARGE, _LARGE)
    if sampler.k >= row.size:
        return _at_least(row.at(row.argmax()).scale(0, -math.inf), row)
    ids, logits = _largest(row, sampler.k + 1)
    certain = (logits.view(1, 1) - logits.view(0, 1)).step()
    return Cut(logits.view(1, sampler.k), ids.view(1, sampler.k), certain.scale(0, sampler.k), certain)


def top_p(sampler: TopP, row: Node, temperature: float) -> Cut:
    """A token stands if those above it have less than p between them."""
    row = row.clamp(-_LARGE, _LARGE)
    ids, logits = _largest(row, row.size)
    if sampler.p == 1:
        one = logits.view(0, 1).scale(0, 1)
        return Cut(logits, ids, one.scale(row.size), one)
    mass = row.scale(1 / sampler.seen(temperature)).softmax().at(ids).cumsum()
    above = (mass - mass.view(row.size - 1, 1)).scale(-1)
    stands = above.scale(-1, max(sampler.p, _TINY)).step()
    k = stands.sum()
    return Cut(logits + stands.log(), ids, k, k.scale(0, 1))


def min_p(sampler: MinP, row: Node, temperature: float) -> Cut:
    row = row.clamp(-_LARGE, _LARGE)
    log_p = math.log(sampler.p) if sampler.p > 0 else -math.inf
    return _at_least(row.at(row.argmax()).scale(1, sampler.seen(temperature) * log_p), row)


def top_n_sigma(sampler: TopNSigma, row: Node, temperature: float) -> Cut:  # noqa: ARG001
    row = row.clamp(-_LARGE, _LARGE)
    deviations = row - row.sum().scale(1 / row.size)
    sigma = (deviations * deviations).sum().scale(1 / row.size).sqrt()
    return _at_least(row.at(row.argmax()) - sigma.scale(sampler.n), row)


def eta(sampler: Eta, row: Node, temperature: float) -> Cut:
    """The threshold in logits: l_1 + T (log sum exp(l / T) - l_1 / T + min(log ε, log(ε) / 2 - H))."""
    row, seen = row.clamp(-_LARGE, _LARGE), sampler.seen(temperature)
    p = row.scale(1 / seen).softmax()
    top = row.argmax()
    largest, log_total = row.at(top), -p.at(top).log()
    entropy = log_total - (p * (row - largest)).sum().scale(1 / seen)
    log_epsilon = math.log(sampler.epsilon)
    limit = entropy.scale(-1, log_epsilon / 2).minimum(entropy.scale(0, log_epsilon))
    return _at_least(largest + (log_total + limit).scale(seen), row)


def p_less(sampler: PLess, row: Node, temperature: float) -> Cut:
    """The threshold in logits: l_1 + T log(sum of p² / largest p)."""
    row, seen = row.clamp(-_LARGE, _LARGE), sampler.seen(temperature)
    p = row.scale(1 / seen).softmax()
    top = row.argmax()
    return _at_least(row.at(top) + ((p * p).sum() / p.at(top)).log().scale(seen), row)


GRAPHS: dict[type[Sampler], Callable[[Any, Node, float], Cut]] = {
    MinK: min_k,
    Greedy: greedy,
    TopK: top_k,
    TopP: top_p,
    MinP: min_p,
    TopNSigma: top_n_sigma,
    Eta: eta,
    PLess: p_less,
}
"""What can be cut in a graph: (sampler, one row of raw logits, temperature) to the nodes of its cut."""


def has_backend_form(sampler: Sampler) -> bool:
    """Whether there is a graph form of it: of mirostat, say, or a variant of Min-k there is none."""
    return type(sampler) in GRAPHS and not (isinstance(sampler, MinK) and sampler != MinK(sampler.tau))


def _at_least(threshold: Node, row: Node) -> Cut:
    """Keep what is not below `threshold`; nothing is certain if that is nothing."""
    below = (row - threshold).scale(-1).step()
    k = below.sum().scale(-1, row.size)
    return Cut(row + below.scale(-1, 1).log(), None, k, k.scale(0, 1))


def _largest(row: Node, n: int) -> tuple[Node, Node]:
    """Ids and logits of the n largest, smallest of them first."""
    among = row.top(n)
    logits = row.at(among)
    order = logits.ascending()
    return among.at(order), logits.at(order)


def _keep(logits: Node, k: Node) -> Node:
    """`logits`, ascending, with -inf before the last k."""
    return logits + (logits.countdown(logits.size) + k).scale(1, 0.5).step().log()


class Stage:
    """A llama_sampler that works only in a graph.

    build: adds nodes; it gets a ggml_context and the llama_sampler_data that samplers hand on.
    adds_nodes: False for one that only rearranges what those before it in the chain have made.

    `handle` is for a chain, which frees it, but the Stage must live as long: llama.cpp calls its
    functions. It has nothing of its own to clone or free there (`ctx` is NULL: a clone shares them).
    """

    def __init__(self, name: str, build: Callable[[int, Any], None], adds_nodes: bool = True) -> None:
        self.ready = False  # it and all before it in the chain are in the graph
        self.error: BaseException | None = None
        self._build, self._adds_nodes = build, adds_nodes
        self._name = ctypes.create_string_buffer(name.encode())
        name_function = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(self._tell_name)
        self._functions = (
            name_function,
            ctypes.cast(name_function, C.llama_sampler_i_name),
            C.llama_sampler_i_backend_init(self._init),
            C.llama_sampler_i_backend_apply(self._apply),
        )
        _, interface_name, init, apply = self._functions
        self._interface = C.llama_sampler_i(name=interface_name, backend_init=init, backend_apply=apply)
        self.handle = C.llama_sampler_init(ctypes.byref(self._interface), None)

    def _tell_name(self, _: Any) -> int:
        return ctypes.addressof(self._name)

    def _init(self, _: Any, buffer_type: int, __: int) -> bool:
        """Whether the device of the logits has every operation. The caller is C: nothing is raised."""
        try:
            self.ready = not self._adds_nodes or self._supported(buffer_type)
        except BaseException as error:
            self.error = error
        return self.ready

    def _apply(self, _: Any, graph: int, __: int, data: Any) -> None:
        try:
            self._build(graph, data.contents)
        except BaseException as error:
            self.error = error

    def _supported(self, buffer_type: int) -> bool:
        with Scratch(_MAX_NODES) as scratch:
            data = C.llama_sampler_data(logits=Node.new(scratch.context, _PROBE).pointer)
            self._build(scratch.context, data)
            for tensor in filter(None, (data.logits, data.probs, data.candidates)):
                scratch.expand(Node.wrap(scratch.context, tensor))
            return supported(buffer_type, scratch)


class Chain:
    """A llama_sampler_chain for `llama_set_sampler`: the cut, llama.cpp's `temp` and `dist`, a report.

    The report takes the place of the probabilities: one float32, k where the cut is certain; 0, or NaN
    for a row with a logit that is not finite, where it is not.
    keep_rows: leave the cut logits, and the ids that they belong to, to be copied to the host as well.

    Must live until llama.cpp has it no more, and then be freed once. Attach it to one sequence, once.
    """

    def __init__(self, sampler: Sampler, temperature: float, seed: int, keep_rows: bool = False) -> None:
        self._sampler, self._temperature, self._keep_rows = sampler, temperature, keep_rows
        self._report: Node | None = None
        self._in_order: Node | None = None
        self._stages = Stage(sampler.name, self._cut), Stage("report", self._show, adds_nodes=False)
        parts = [stage.handle for stage in self._stages]
        if not isinstance(sampler, Greedy):  # whose cut is the token
            parts[1:1] = C.llama_sampler_init_temp(temperature), C.llama_sampler_init_dist(seed)
        self.handle = C.llama_sampler_chain_init(C.llama_sampler_chain_default_params())
        for part in parts:
            C.llama_sampler_chain_add(self.handle, part)

    @property
    def error(self) -> BaseException | None:
        """What went wrong in a function that llama.cpp called."""
        return self._stages[0].error or self._stages[1].error

    @property
    def offloaded(self) -> bool:
        """Whether llama.cpp, when it was attached, took every part into the graph."""
        return self._stages[1].ready

    def free(self) -> None:
        C.llama_sampler_free(self.handle)

    def _cut(self, graph: int, data: Any) -> None:
        self._report = None  # of another graph: not to be found there if this one cannot be built
        row = Node.wrap(graph, data.logits)
        cut = GRAPHS[type(self._sampler)](self._sampler, row, self._temperature)
        # With a logit that is not finite the sum is not either, and 0 times it is NaN.
        report = cut.k * cut.certain + row.sum().scale(0)
        data.logits, data.candidates = cut.logits.pointer, cut.ids and cut.ids.pointer
        data.probs = report.pointer
        self._report = report
        self._in_order = None if cut.ids else cut.logits
        if isinstance(self._sampler, Greedy):
            data.sampled = data.candidates

    def _show(self, graph: int, data: Any) -> None:
        report = self._report
        if report and self._in_order:  # see to it that the token stands: -inf makes this NaN
            report += self._in_order.at(Node.wrap(graph, data.sampled)).scale(0)
        data.probs = report and report.pointer
        if not self._keep_rows:
            data.logits = data.candidates = None


class BackendSampler:
    """Draws the tokens of one sequence of `context` inside its graph.

    A random number is spent on every output of the sequence: for one seed to give one text, only the
    last token of a prompt may be an output. `k` is the number of candidates of the last draw.

    From `attach` to `detach`, the attachment of another, or its end, the context has no logits for the
    sequence.
    """

    def __init__(
        self, sampler: Sampler, temperature: float, seed: int, context: Context, seq_id: int = 0
    ) -> None:
        self.k = 0
        self._context, self._seq_id = context, seq_id
        self._chain = Chain(sampler, temperature, seed)
        # The finalizer holds context and chain: llama.cpp must have let go of a chain that is freed.
        self._release = weakref.finalize(self, _release, context, self._chain, seq_id)

    def attach(self) -> bool:
        """False, and nothing is attached, where the device of the logits lacks an operation. Raises
        GenerationError where the nodes could not be made."""
        self._context.attach(self._chain.handle, self._seq_id)
        self._check()
        if not self._chain.offloaded:
            self.detach()
        return self._chain.offloaded

    def detach(self) -> None:
        """Have the context hand out logits again. It cannot be attached a second time."""
        self._release()

    def next(self, output: int = -1) -> int | None:
        """The token drawn for an output of the last batch (by default the last), or None where the
        cut is not certain. Raises GenerationError where its nodes could not be made."""
        self._check()
        token, k = self._context.sampled(output)
        if not k > 0:  # NaN is not either
            return None
        self.k = round(k)
        return token

    def _check(self) -> None:
        if self._chain.error is not None:
            raise GenerationError("the sampler could not be built into the graph") from self._chain.error


def _release(context: Context, chain: Chain, seq_id: int) -> None:
    context.detach(chain.handle, seq_id)
    chain.free()
