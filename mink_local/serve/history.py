"""The last answers, kept in memory: the playground shows why they say what they say."""

from collections.abc import Sequence
from dataclasses import dataclass

from mink_local.generation.answer import Answer
from mink_local.generation.request import SamplingParams
from mink_local.serve.bodies import ApiError

SIZE = 100  # requests
_ANSWERS = 4  # of a request: the playground's columns


@dataclass(frozen=True)
class ResponseHead:
    """What is known of a response before there are answers.

    Attributes:
        request_id: Identifies the request.
        created: In seconds since 1970.
        model: The model id that was asked for.
        fingerprint: Identifies the model and the versions.
        params: How the answers are sampled.
        client: The name of the key that was used; "" without keys.
    """

    request_id: str
    created: int
    model: str
    fingerprint: str
    params: SamplingParams
    client: str


class History:
    """The last requests, by their ids.

    Args:
        size: Number of requests to keep.
    """

    def __init__(self, size: int = SIZE) -> None:
        self._size = size
        self._records: dict[str, tuple[ResponseHead, Sequence[Answer]]] = {}

    def add(self, head: ResponseHead, answers: Sequence[Answer]) -> None:
        """Keep a request, and drop the oldest if there are too many."""
        self._records[head.request_id] = head, answers[:_ANSWERS]
        if len(self._records) > self._size:
            del self._records[next(iter(self._records))]

    def find(self, request_id: str, client: str) -> tuple[ResponseHead, Sequence[Answer]]:
        """Return a request by the end of its id: `req_1f0c` and `chatcmpl-1f0c` are the same.

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
