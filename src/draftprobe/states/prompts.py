"""Input files of capture and decode: texts, chat prompts and token ids, read into Items.

Plain files hold one entry per line; names ending in .jsonl hold one JSON object per line. Knows
the tokenizer's template, not the model.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from draftprobe.errors import InputError
from draftprobe.states.capture import Item


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: expected UTF-8 text: {error}") from None
    # Not splitlines(): a JSON string may hold U+2028 and its like as they are.
    lines = [(n, line) for n, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not lines:
        raise InputError(f"{path}: expected at least one entry, found an empty file")
    return iter(lines)


def _objects(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, line in _lines(path):
        where = f"{path}:{number}"
        try:
            data = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{where}: expected a JSON object per line: {error}") from None
        if not isinstance(data, dict):
            raise InputError(f"{where}: expected a JSON object, found {type(data).__name__}")
        yield where, data


def _need_tokenizer(tokenizer: Any, path: Path) -> None:
    if tokenizer is None:
        raise InputError(
            f"{path}: text needs the target's tokenizer, and the target has none; use --tokens"
        )


def read_texts(path: Path, tokenizer: Any, limit: int) -> list[Item]:
    """Plain text, one sequence per line (or ``{"text": ...}``), cut at ``limit`` tokens."""
    _need_tokenizer(tokenizer, path)
    if path.suffix == ".jsonl":
        texts = [
            (_string(where, data, "text"), str(data.get("kind", "")))
            for where, data in _objects(path)
        ]
    else:
        texts = [(line, "") for _, line in _lines(path)]
    items = []
    for text, kind in texts:
        ids = tuple(tokenizer(text)["input_ids"][:limit])
        items.append(Item(ids, (True,) * len(ids), kind))
    return items


def read_prompts(path: Path, tokenizer: Any, limit: int) -> tuple[list[Item], str]:
    """Chat prompts through the tokenizer's own template, and that template's SHA-256.

    A line of a plain file is one user message; a JSON line has ``prompt`` (a string) or
    ``messages`` (a chat), and optionally ``kind``. Where the chat ends with an assistant message,
    that message's tokens count; else the item ends with the generation prompt and none count.
    """
    _need_tokenizer(tokenizer, path)
    if not getattr(tokenizer, "chat_template", None):
        raise InputError(f"{path}: the target's tokenizer has no chat template; use --text")
    chats: list[tuple[str, list[dict[str, str]], str]] = []
    if path.suffix == ".jsonl":
        for where, data in _objects(path):
            chats.append((where, _messages(where, data), str(data.get("kind", ""))))
    else:
        chats = [
            (f"{path}:{number}", [{"role": "user", "content": line}], "")
            for number, line in _lines(path)
        ]
    items = [_chat_item(where, tokenizer, chat, kind, limit) for where, chat, kind in chats]
    return items, hashlib.sha256(str(tokenizer.chat_template).encode()).hexdigest()


def _messages(where: str, data: dict[str, Any]) -> list[dict[str, str]]:
    if "messages" not in data:
        return [{"role": "user", "content": _string(where, data, "prompt")}]
    chat = data["messages"]
    if not isinstance(chat, list) or not chat or not all(isinstance(m, dict) for m in chat):
        raise InputError(f"{where}: expected messages to be a list of role and content")
    return [
        {"role": _string(where, m, "role"), "content": _string(where, m, "content")} for m in chat
    ]


def _string(where: str, data: dict[str, Any], key: str) -> str:
    if not isinstance(data.get(key), str):
        raise InputError(f"{where}: expected a string under {key!r}, found keys {sorted(data)}")
    try:
        data[key].encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{where}: {key!r} is no valid Unicode: {error}") from None
    return data[key]


def _chat_item(
    where: str, tokenizer: Any, chat: list[dict[str, str]], kind: str, limit: int
) -> Item:
    answered = chat[-1]["role"] == "assistant"
    if answered and len(chat) == 1:
        raise InputError(f"{where}: expected a question before the assistant's message, found none")
    question = chat[:-1] if answered else chat
    prefix = _encode(tokenizer, question, True)
    if not answered:
        if len(prefix) > limit:
            raise InputError(
                f"{where}: the prompt has {len(prefix)} tokens, more than the limit of {limit}"
            )
        return Item(prefix, (False,) * len(prefix), kind)
    whole = _encode(tokenizer, chat, False)
    if whole[: len(prefix)] != prefix:
        raise InputError(
            f"{where}: the template does not render the question as a prefix of the whole chat, "
            "so the answer's tokens cannot be told apart; give token ids and a mask (--tokens)"
        )
    mask = (False,) * len(prefix) + (True,) * (len(whole) - len(prefix))
    return Item(whole[:limit], mask[:limit], kind)


def _encode(tokenizer: Any, chat: list[dict[str, str]], generation: bool) -> tuple[int, ...]:
    text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=generation)
    return tuple(tokenizer(text, add_special_tokens=False)["input_ids"])


def read_tokens(path: Path, limit: int) -> list[Item]:
    """Token ids: JSON lines of ``input_ids`` and optional ``loss_mask`` and ``kind``."""
    items = []
    for where, data in _objects(path):
        ids = data.get("input_ids")
        mask = data.get("loss_mask", [1] * len(ids) if isinstance(ids, list) else None)
        if (
            not isinstance(ids, list)
            or not isinstance(mask, list)
            or len(ids) != len(mask)
            or not all(isinstance(i, int) and not isinstance(i, bool) for i in ids)
            or not all(m in (0, 1) for m in mask)
        ):
            raise InputError(
                f"{where}: expected input_ids (integers) and optionally loss_mask (0 or 1, as many)"
            )
        items.append(
            Item(
                tuple(ids[:limit]), tuple(bool(m) for m in mask[:limit]), str(data.get("kind", ""))
            )
        )
    return items
