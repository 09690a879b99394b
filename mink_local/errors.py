"""Errors of this package; the text of each is one sentence for a person."""


class MinkError(Exception):
    """Base of this package's errors; its text says what is wrong and what to do."""


class ModelNotFoundError(MinkError):
    """No file is found for a model's name or path."""


class CatalogError(MinkError):
    """A catalogue of models cannot be read or written."""


class DownloadError(MinkError):
    """A model could not be fetched."""


class ModelError(MinkError):
    """A model file cannot be loaded or cannot generate text."""


class ContextOverflowError(MinkError):
    """A prompt of `n_tokens` does not fit a context of `n_ctx` tokens."""

    def __init__(self, n_tokens: int, n_ctx: int) -> None:
        super().__init__(
            f"the prompt is {n_tokens} tokens and the context holds {n_ctx}: "
            "shorten it, or ask for a longer context (n_ctx, --ctx)"
        )
        self.n_tokens = n_tokens
        self.n_ctx = n_ctx


class RunError(MinkError):
    """The folder of an evaluation cannot be used, or its records do not match the run."""


class GenerationError(MinkError):
    """A model cannot go on generating."""


class TaskNotFoundError(MinkError):
    """No task has this name."""


class DataError(MinkError):
    """A task's questions are not available, not in the task's format, or cannot be scored."""


class ReportError(MinkError):
    """A folder holds no run to report on, or the report cannot be written."""


class JudgeError(MinkError):
    """A judge, or its server, cannot be asked."""
