"""All endpoints by their paths."""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from mink_local.serve.endpoints.candidates import CandidatesRequest, StepCandidates, find_candidates
from mink_local.serve.endpoints.state import (
    Health,
    ModelEntry,
    ModelList,
    Properties,
    RecordedRequest,
    health,
    list_models,
    loaded_model,
    metrics,
    properties,
    ready,
    recorded_request,
    retrieve_model,
)
from mink_local.serve.endpoints.tokens import (
    CountedTokens,
    DetokenizedText,
    DetokenizeRequest,
    MessageTokens,
    TokenizedText,
    TokenizeRequest,
    TokenizerInfo,
    count_input_tokens,
    count_message_tokens,
    detokenize,
    tokenize,
    tokenizer_info,
)
from mink_local.serve.protocols.completions import (
    ChatCompletion,
    ChatCompletionChunk,
    LlamaCompletion,
    TextCompletion,
    create_chat_completion,
    create_completion,
    create_llama_completion,
)
from mink_local.serve.protocols.messages import MessageObject, MessagesRequest, create_message
from mink_local.serve.protocols.responses import ResponseObject, ResponsesRequest, create_response
from mink_local.serve.request.chat import ChatRequest, CompletionRequest
from mink_local.serve.request.fields import Fields


@dataclass(frozen=True)
class Endpoint:
    """What answers the requests to a path; the first line of its docstring says so in the documents.

    Args:
        handler: Returns the response, or the value that becomes its JSON, for the service, the client, and
            the parsed request or the parameters of the path.
        response: The type of the response; None if it is not documented.
        request: The type of the request, for a POST.
        chunk: The type of a stream's chunks.
    """

    handler: Callable[..., Coroutine[Any, Any, Any]]
    response: type | None = None
    request: type[Fields] | None = None
    chunk: type | None = None

    @property
    def method(self) -> str:
        """The HTTP method."""
        return "GET" if self.request is None else "POST"


ENDPOINTS = {
    "/v1/chat/completions": Endpoint(
        create_chat_completion, ChatCompletion, ChatRequest, ChatCompletionChunk
    ),
    "/v1/completions": Endpoint(create_completion, TextCompletion, CompletionRequest, TextCompletion),
    "/v1/responses": Endpoint(create_response, ResponseObject, ResponsesRequest),
    "/v1/responses/input_tokens": Endpoint(count_input_tokens, CountedTokens, ResponsesRequest),
    "/v1/messages": Endpoint(create_message, MessageObject, MessagesRequest),
    "/v1/messages/count_tokens": Endpoint(count_message_tokens, MessageTokens, MessagesRequest),
    "/completion": Endpoint(create_llama_completion, LlamaCompletion, CompletionRequest, LlamaCompletion),
    "/props": Endpoint(properties, Properties),
    "/candidates": Endpoint(find_candidates, StepCandidates, CandidatesRequest),
    "/tokenize": Endpoint(tokenize, TokenizedText, TokenizeRequest),
    "/detokenize": Endpoint(detokenize, DetokenizedText, DetokenizeRequest),
    "/v1/models": Endpoint(list_models, ModelList),
    "/v1/models/{model_id}": Endpoint(retrieve_model, ModelEntry),
    "/v1/model": Endpoint(loaded_model, ModelEntry),
    "/tokenizer_info": Endpoint(tokenizer_info, TokenizerInfo),
    "/health": Endpoint(health, Health),
    "/ready": Endpoint(ready, Health),
    "/history/{request_id}": Endpoint(recorded_request, RecordedRequest),
    "/metrics": Endpoint(metrics, str),
}
"""The documented endpoints by their paths; they exist with and without /v1."""
