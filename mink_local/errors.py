"""This package's exceptions; each text is a message for the user."""

import copyreg
from typing import Any


class _Travels:
    """An exception that can be pickled, whatever its arguments, for pools of processes."""

    def __reduce__(self) -> tuple[Any, ...]:
        return copyreg.__newobj__, (type(self), *self.args), vars(self)  # type: ignore[attr-defined]


class MinkError(_Travels, Exception):
    """Base class of this package's errors: the text says what is wrong, then what to do."""


class ModelNotFoundError(MinkError):
    """No file was found for a model name or path."""


class CatalogError(MinkError):
    """A models.txt cannot be read or written."""


class DownloadError(MinkError):
    """A model could not be downloaded."""


class ModelError(MinkError):
    """A model file cannot be loaded or cannot generate text."""


class ContextOverflowError(MinkError):
    """A prompt of `n_tokens` tokens, or more, does not fit into a context of `n_ctx` tokens."""

    def __init__(self, n_tokens: int, n_ctx: int) -> None:
        super().__init__(
            f"the prompt needs at least {n_tokens} tokens but the context holds only {n_ctx}: "
            "shorten it, or use a larger context (--ctx; n_ctx in Python)"
        )
        self.n_tokens = n_tokens
        self.n_ctx = n_ctx


class RunError(MinkError):
    """An evaluation's folder cannot be used, or its records do not match the run."""


class GenerationError(MinkError):
    """A model failed to generate."""


class NoTokenLeftError(GenerationError):
    """The request's constraints exclude every token, or could not be evaluated in time."""


class OptionError(MinkError, ValueError):
    """An option is out of range; `place` is its name."""

    def __init__(self, option: str, reason: str) -> None:
        super().__init__(f"{option} {reason}")
        self.place = option


class PromptError(MinkError, ValueError):
    """Messages or tools are malformed, or a prompt is empty."""


class ConstraintError(OptionError):
    """A constraint that cannot be kept.

    Attributes:
        place: The option, and where in a JSON schema the reason is: `json_schema.properties.age.not`.
    """

    def __init__(self, option: str, reason: str, place: str = "") -> None:
        self.place = f"{option}{'.' * (place[:1] not in ('', '['))}{place}"
        ValueError.__init__(self, f"{self.place}: {reason}")


class TaskNotFoundError(MinkError):
    """No task has this name."""


class DataError(MinkError):
    """A task's questions are not available, not in the task's format, or cannot be scored."""


class ReportError(MinkError):
    """A folder contains no run to report on, or the report cannot be written."""


class JudgeError(MinkError):
    """A judge gives no readable answers."""


class ServerError(MinkError):
    """A model's server cannot be reached, or does not answer as it should."""
