"""Models of a Hugging Face hub. Importing this imports huggingface_hub, which takes half a second."""

from __future__ import annotations

import re
from pathlib import Path

import huggingface_hub
from huggingface_hub.errors import (
    GatedRepoError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from octavo.errors import ModelError, listed
from octavo.weights.packages import say
from octavo.weights.published import Found
from octavo.weights.safetensors import PICKLED_SUFFIXES

CARD = "README.md"
# All that is read of a model, and its card, which tells the licence. Never .bin, and never code.
FILES = [
    "*.safetensors",
    "*.safetensors.index.json",
    "config.json",
    "generation_config.json",
    "1_Pooling/config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    CARD,
]
# Subfolders hold other versions of a model, and Mistral's consolidated files are copies in another layout.
NOT_FILES = ["*/*", "consolidated*.safetensors"]


def fetch(repo: str, revision: str | None, file: str | None, cache_dir: Path | None) -> Found:
    """A model by its hub id: the folder of its files or, if `file` is given, that one .gguf file of it.

    Kept where huggingface_hub keeps things (HF_HOME), or in cache_dir. While the hub can be reached it is asked whether
    the revision has moved; otherwise what is kept is used. Raises ModelError.
    """
    patterns = ([file, CARD], None) if file else (FILES, NOT_FILES)
    kept = snapshot(repo, revision, cache_dir, patterns, local=True)
    try:
        if kept is None:
            say(f"fetching {repo} from {huggingface_hub.constants.ENDPOINT}")
        folder = snapshot(repo, revision, cache_dir, patterns, local=False)
    except (
        Exception
    ) as error:  # errors of its HTTP client come through as well, whose types differ between its versions
        raise ModelError(trouble(repo, revision, error)) from error
    assert folder is not None
    found = Found(folder / file if file else folder, f"{huggingface_hub.constants.ENDPOINT}/{repo}", licence_of(folder))
    if not (found.path.is_file() if file else any(folder.glob("*.safetensors"))):
        raise ModelError(no_weights(repo, revision, file))
    if kept is None:
        say(f"origin: {found.origin}; licence: {found.licence}")
    return found


def snapshot(
    repo: str,
    revision: str | None,
    cache_dir: Path | None,
    patterns: tuple[list[str], list[str] | None],
    local: bool,
) -> Path | None:
    """The folder of the matching files. local: as it is on this disk, None if it is not."""
    try:
        return Path(
            huggingface_hub.snapshot_download(
                repo,
                revision=revision,
                cache_dir=cache_dir,
                allow_patterns=patterns[0],
                ignore_patterns=patterns[1],
                local_files_only=local,
            )
        )
    except LocalEntryNotFoundError:
        if local:
            return None
        raise


def trouble(repo: str, revision: str | None, error: Exception) -> str:
    endpoint = huggingface_hub.constants.ENDPOINT
    if isinstance(error, GatedRepoError):
        return f"{repo} is gated: accept its terms at {endpoint}/{repo} and set HF_TOKEN."
    if isinstance(error, RevisionNotFoundError):
        return f"{repo} has no revision {revision} at {endpoint}."
    if isinstance(error, RepositoryNotFoundError):
        return (
            f"{Path(repo).absolute()} does not exist, and {endpoint} has no model {repo}; "
            "set HF_TOKEN if it is private."
        )
    if isinstance(error, LocalEntryNotFoundError):
        if huggingface_hub.constants.HF_HUB_OFFLINE:
            reason = "is not in the cache while HF_HUB_OFFLINE keeps octavo from fetching it"
        else:
            reason = f"cannot be fetched, since {endpoint} does not answer (HF_ENDPOINT names another hub)"
        return f"{Path(repo).absolute()} does not exist, and the hub's model {repo} {reason}."
    return (
        f"cannot fetch {repo} from {endpoint}: {str(error).strip().splitlines()[0] if str(error).strip() else error!r}"
    )


def no_weights(repo: str, revision: str | None, file: str | None) -> str:
    try:
        names = huggingface_hub.HfApi().list_repo_files(repo, revision=revision)
    except Exception:  # the names only make the sentence better
        names = []
    if gguf := [name for name in names if name.endswith(".gguf")]:
        lack = f"has no {file}, but" if file else "has GGUF files; name one of them:"
        return f"{repo} {lack} {listed(f'{repo}/{name}' for name in gguf)}."
    if file:
        return f"{repo} has no {file}."
    if pickled := [name for name in names if name.endswith(PICKLED_SUFFIXES)]:
        return (
            f"{repo} has its weights only as pickle ({listed(pickled)}), which can run code when read, "
            "so octavo does not read it; use a safetensors or GGUF version of the model."
        )
    return f"{repo} has no safetensors files."


def licence_of(folder: Path) -> str:
    """The licence that the header of a model's card names."""
    try:
        card = (folder / CARD).read_text("utf-8", "replace")
    except OSError:
        card = ""
    header = re.match(r"---\s*\n(.*?)\n---", card, re.DOTALL)
    said = re.search(r"^license(?:_name)?:\s*(\S.*)$", header[1], re.MULTILINE) if header else None
    return said[1].strip() if said else "not stated"
