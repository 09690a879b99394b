"""Files that are sent with a message."""

import click
import pytest

from mink_local.chat.attachments import Attachment, matching
from mink_local.generation.model import Model
from tests.support.folders import of_others


@pytest.mark.posix
def test_a_file_in_a_folder_of_others_is_named(smollm2: Model) -> None:
    with of_others() as others:
        [path] = matching(str(others / "x.txt"))
        with pytest.raises(click.UsageError, match=rf"^{path}: \w"):
            Attachment.read(smollm2, path)
