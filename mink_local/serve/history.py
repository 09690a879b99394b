"""The last answers, kept in memory: the playground shows why they say what they say."""

from collections.abc import Sequence

import msgspec

from mink_local.generation.answer import Answer
from mink_local.serve.bodies import ApiError, ResponseHead

SIZE = 100  # requests
MOST_BYTES = 64 << 20
_ANSWERS = 4  # of a request: the playground's columns


def recorded(answer: Answer) -> bytes:
    """Return what the playground shows of an answer, in MessagePack; of its texts, the token ids."""
    params, reason = answer.request.params, answer.finish_reason
    return msgspec.msgpack.encode(
        {
            "prompt": answer.prompt,
            "tokens": answer.tokens,
            "k": answer.k,
            "sampler": str(params.effective_sampler),
            "temperature": params.temperature,
            "finish_reason": "left" if reason in (None, "interrupted") else reason,
        }
    )


class History:
    """The last requests, by their ids.

    Args:
        size: Number of requests to keep.
        most_bytes: What their answers may occupy; the oldest requests are dropped.
    """

    def __init__(self, size: int = SIZE, most_bytes: int = MOST_BYTES) -> None:
        self._size = size
        self._most_bytes = most_bytes
        self._n_bytes = 0
        self._records: dict[str, tuple[ResponseHead, Sequence[bytes]]] = {}

    def add(self, head: ResponseHead, answers: Sequence[Answer]) -> None:
        """Keep a request, and drop the oldest if there are too many."""
        if self._size:
            kept = [*map(recorded, answers[:_ANSWERS])]
            self._records[head.request_id] = head, kept
            self._n_bytes += sum(map(len, kept))
        while len(self._records) > self._size or self._n_bytes > self._most_bytes:
            _, dropped = self._records.pop(next(iter(self._records)))
            self._n_bytes -= sum(map(len, dropped))

    def find(self, request_id: str, client: str) -> tuple[ResponseHead, Sequence[bytes]]:
        """Return a request by the end of its id, with its `recorded` answers.

        `req_1f0c` and `chatcmpl-1f0c` are the same.

        Args:
            request_id: The id.
            client: The name of the key that was used for it, which may see it.

        Raises:
            ApiError: It is not in the history, or another key's.
        """
        record = self._records.get(request_id.replace("-", "_").rpartition("_")[2])
        if record is None or record[0].client != client:
            message = f"request {request_id[:100]!r} is not among this key's of the last {self._size}"
            raise ApiError(404, message, param="request_id", code="request_not_found")
        return record
