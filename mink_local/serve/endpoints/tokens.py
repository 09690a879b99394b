"""Texts and token ids: the tokenizer, and the length of prompts."""

from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta

from mink_local.generation.request import SamplingParams
from mink_local.serve.bodies import ApiError, Output, api_errors
from mink_local.serve.clients import Client
from mink_local.serve.protocols.messages import MessagesRequest
from mink_local.serve.protocols.responses import ResponsesRequest
from mink_local.serve.request.fields import Fields, TokenId
from mink_local.serve.request.parsing import Parsed
from mink_local.serve.request.sampling import chat_for_engine
from mink_local.serve.service import Service

MAX_TEXT_CHARACTERS = 1 << 20
MAX_CONTROL_TOKENS = 10_000  # in a text; llama.cpp's time grows with the square of their number
_COUNTED = (  # fields that a prompt's length depends on
    "model", "messages", "system", "input", "instructions", "tools", "tool_choice", "thinking", "reasoning",
    "chat_template_kwargs",
)  # fmt: skip

LongText = Annotated[str, Meta(max_length=MAX_TEXT_CHARACTERS)]


class TokenizeRequest(Fields, frozen=True):
    """Body of `POST /tokenize`, with llama-server's names or vLLM's.

    Attributes:
        content: The text; with this name no token is added at the beginning by default, as in llama-server;
            `text` is the same.
        prompt: The text; with this name one is, as in vLLM.
        add_special: Whether to add the token that begins texts; `add_special_tokens` is the same.
        parse_special: Whether control tokens in the text are read as such.
    """

    names: ClassVar = {
        "content": ("content", "text"),
        "add_special": ("add_special", "add_special_tokens"),
    }

    content: LongText | None = None
    prompt: LongText | None = None
    add_special: bool | None = None
    parse_special: bool = True

    def __post_init__(self) -> None:
        if (self.content is None) == (self.prompt is None):
            raise ApiError(400, "give content or prompt, and not both", param="content")


class DetokenizeRequest(Fields, frozen=True):
    """Body of `POST /detokenize`."""

    tokens: Annotated[list[TokenId], Meta(max_length=MAX_TEXT_CHARACTERS)]


class TokenizedText(Output, kw_only=True):
    """The tokens of a text."""

    tokens: list[int]
    count: int
    max_model_len: int


class DetokenizedText(Output, kw_only=True):
    """The text of token ids, by llama-server's and vLLM's names."""

    content: str
    prompt: str


class TokenizerInfo(Output, kw_only=True):
    """The special tokens and the chat template."""

    bos_token: str
    eos_token: str
    chat_template: str | None


class CountedTokens(Output, kw_only=True):
    """The number of tokens of a conversation's prompt."""

    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: int


class MessageTokens(Output, kw_only=True):
    """The number of tokens of a conversation's prompt."""

    input_tokens: int


async def tokenize(service: Service, client: Client, parsed: Parsed[TokenizeRequest]) -> TokenizedText:
    """Return the token ids of a text."""
    return await service.work(client, _tokenized, service, parsed.request)


def _tokenized(service: Service, request: TokenizeRequest) -> TokenizedText:
    is_content, weights = request.content is not None, service.model.weights
    text = (request.content if is_content else request.prompt) or ""
    if request.parse_special and service.n_control_tokens(text) > MAX_CONTROL_TOKENS:
        message = f"more than {MAX_CONTROL_TOKENS} control tokens: send parse_special: false"
        raise ApiError(400, message, param="content" if is_content else "prompt")
    # vLLM adds the beginning of a text by default, llama-server does not.
    add_special = not is_content if request.add_special is None else request.add_special
    tokens = weights.tokenize(text, add_special=add_special, parse_special=request.parse_special)
    return TokenizedText(tokens=tokens, count=len(tokens), max_model_len=service.model.n_ctx)


async def detokenize(service: Service, client: Client, parsed: Parsed[DetokenizeRequest]) -> DetokenizedText:
    """Return the text of token ids."""
    with api_errors():
        text = await service.work(client, service.model.detokenize, parsed.request.tokens)
    return DetokenizedText(content=text, prompt=text)


async def tokenizer_info(service: Service, _: Client) -> TokenizerInfo:
    """Return the special tokens and the chat template."""
    weights = service.model.weights
    return TokenizerInfo(bos_token=weights.bos, eos_token=weights.eos, chat_template=weights.chat_template)


async def count_input_tokens(
    service: Service, client: Client, parsed: Parsed[ResponsesRequest]
) -> CountedTokens:
    """Count the tokens of a conversation's prompt."""
    return CountedTokens(input_tokens=await _counted(service, client, parsed))


async def count_message_tokens(
    service: Service, client: Client, parsed: Parsed[MessagesRequest]
) -> MessageTokens:
    """Count the tokens of a conversation's prompt."""
    return MessageTokens(input_tokens=await _counted(service, client, parsed))


async def _counted(service: Service, client: Client, parsed: Parsed[Any]) -> int:
    request = parsed.request
    service.presets.find(request.model)

    def count() -> int:
        chat = chat_for_engine(service.model, request.normal(), SamplingParams())
        return len(service.tokens(chat))

    given = (name for name in request.__struct_fields__ if getattr(request, name) is not None)
    parsed.ignored.update(name for name in given if name not in _COUNTED)
    with api_errors():
        return await service.work(client, count)
