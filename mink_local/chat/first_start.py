"""The first start in a terminal: which model is to answer, now and from then on."""

import os
from collections.abc import Callable
from typing import Any

import click

from mink_local.chat.attachments import path_of
from mink_local.chat.settings import model_name
from mink_local.chat.terminal.screen import Screen
from mink_local.errors import CatalogError, MinkError
from mink_local.files import size_in_words
from mink_local.models import catalog, stores, trust
from mink_local.models.catalog import EMBEDDED
from mink_local.models.gguf import read_metadata
from mink_local.models.offer import find_offer, take

_ANSWERS = {"y": True, "yes": True, "n": False, "no": False}


def first_model(screen: Screen) -> str:
    """Return the model that the user chooses, and keep the choice.

    What could not be had, since a download failed, is not chosen: the next start asks again.
    """
    offer = find_offer()
    usual = "y" if offer else "n"
    try:
        name = click.prompt(_question(offer), usual, show_default=False, value_proc=_answered(offer))
    except click.Abort:
        screen.show("")  # the cursor is behind the question
        raise
    try:
        if offer and name == offer["name"]:
            take(offer, screen.note)
        catalog.choose_model(name)
    except CatalogError as error:
        screen.note(f"{error}: the next start asks again")
    except MinkError as error:
        screen.note(f"{error}. For now {EMBEDDED} answers; the next start asks again")
        return EMBEDDED
    return name


def _question(offer: dict[str, Any] | None) -> str:
    if offer is None:
        return "No model yet.\nEnter = the small built-in toy, or type the path of a .gguf file"
    entry = catalog.find(offer["name"])
    begun = entry is not None and not offer["path"] and stores.is_begun(entry.repository)
    verb = "Use" if offer["path"] else "Go on downloading" if begun else "Download"
    why = "is already on" if offer["path"] else "fits"
    return (
        f"No model yet.\n{verb} {offer['name']} ({size_in_words(offer['size'])}), which {why} this machine?\n"
        "Enter = yes, n = the small built-in toy, or type the path of a .gguf file"
    )


def _answered(offer: dict[str, Any] | None) -> Callable[[str], str]:
    """Return what makes the name of a model, or the path of a file that llama.cpp can load, of an answer."""

    def model(text: str) -> str:
        if (wanted := _ANSWERS.get(text.strip().casefold())) is not None:
            return offer["name"] if offer and wanted else EMBEDDED
        typed = str(path) if os.path.exists(path := path_of(text.strip())) else text.strip()
        try:
            file = catalog.resolve(typed)
            read_metadata(file.path).require_model()
            trust.check(file)
        except MinkError as error:
            raise click.UsageError(str(error)) from None
        return model_name(typed)

    return model
