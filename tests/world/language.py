"""A small made-up language: a record of people, tasks about them, and the only right answers.

Every text is drawn from a seed; nothing is read or fetched. Knows no model.

    prompt   <person> keeps <n> <adjective> <things> in <place> .     three times
             ask first <task> second <task> third <task> ?
    answer   first <answer> . second <answer> . third <answer> . summary : ...

A task looks something up, copies, reverses, sorts, counts or adds. Its answer follows from the
prompt, which states people and tasks in random order with random words.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from itertools import product
from pathlib import Path

MARKS = ("<pad>", "<unk>", "<eos>", "<user>", "<answer>")
PAD, UNKNOWN, END, USER, ANSWER = range(len(MARKS))
ORDINALS = ("first", "second", "third", "fourth")
_RULES = """
keeps in and . , : ? ask where whose many total say back sort from can be found the belong belongs
to holds exactly have things together again backwards ascending counting summary has are is
"""
RULES = tuple(_RULES.split())
DIGITS = tuple(str(n) for n in range(100))


def _joined(starts: str, ends: str) -> tuple[str, ...]:
    return tuple(a + b for a, b in product(starts.split(), ends.split()))


NAMES = _joined(
    "Ab Bel Cor Dan El Fen Gar Hal Il Jor Kel Lin Mar Nor Ol Pet",
    "a ric wen dor is mund ette o ena ius ick yn",
)
THINGS = _joined(
    "lam cup bar dol fen gor hat jug kit lob mat net pan rod sag tub",
    "el in ot ap ik um er ox ib",
)
ADJECTIVES = _joined("bri dus glo mur pli qua rus sha tri vel", "ny my ty ry sh fy lic vid rid gy")
PLACES = _joined(
    "North South East West High Low Old New Red Grey Long Far Elm Oak Ash Stone",
    "ham ton burg ford wick dale port mere",
)
CODES = _joined("ka le mi no pu ra se ti vo zu", "b d f g k l m n p r s t v w x z")
WORDS = (
    MARKS + ORDINALS + RULES + DIGITS + NAMES + THINGS
    + tuple(thing + "s" for thing in THINGS) + ADJECTIVES + PLACES + CODES
)  # fmt: skip
IDS = {word: index for index, word in enumerate(WORDS)}

TEMPLATE = (
    "{% for message in messages %}"
    "{% if message.role == 'user' %}<user> {{ message.content }} <answer>"
    "{% else %} {{ message.content }} <eos>{% endif %}"
    "{% endfor %}"
)


@dataclass(frozen=True, slots=True)
class Text:
    """One prompt and its only right answer, as words; ``kind`` names the tasks in order."""

    prompt: tuple[str, ...]
    answer: tuple[str, ...]
    kind: str

    def ids(self) -> tuple[list[int], list[int]]:
        """Ids of the prompt with its marks, and of the answer with its end."""
        prompt = [USER, *(IDS[word] for word in self.prompt), ANSWER]
        return prompt, [*(IDS[word] for word in self.answer), END]


@dataclass(frozen=True, slots=True)
class Person:
    """A row of the record."""

    name: str
    number: int
    adjective: str
    thing: str
    place: str

    @property
    def things(self) -> str:
        """The thing in the number that this person has."""
        return self.thing if self.number == 1 else self.thing + "s"


Task = tuple[str, str]
"""What the prompt says of a task, and the answer: words parted by spaces."""


def _where(draw: random.Random, people: list[Person]) -> Task:
    p = draw.choice(people)
    return f"where {p.name}", f"{p.name} can be found in {p.place}"


def _whose(draw: random.Random, people: list[Person]) -> Task:
    p = draw.choice(people)
    verb = "belongs" if p.number == 1 else "belong"
    return f"whose {p.things}", f"the {p.adjective} {p.things} {verb} to {p.name}"


def _many(draw: random.Random, people: list[Person]) -> Task:
    p = draw.choice(people)
    return f"many {p.name}", f"{p.name} holds exactly {p.number} {p.adjective} {p.things}"


def _total(draw: random.Random, people: list[Person]) -> Task:
    a, b = draw.sample(people, 2)
    said = f"{a.name} and {b.name} have {a.number + b.number} things together"
    return f"total {a.name} {b.name}", said


def _say(draw: random.Random, _: list[Person]) -> Task:
    codes = " ".join(draw.sample(CODES, draw.randint(3, 5)))
    return f"say {codes}", f"again : {codes}"


def _back(draw: random.Random, _: list[Person]) -> Task:
    codes = draw.sample(CODES, draw.randint(3, 5))
    return f"back {' '.join(codes)}", f"backwards : {' '.join(reversed(codes))}"


def _sort(draw: random.Random, _: list[Person]) -> Task:
    numbers = draw.sample(range(100), draw.randint(3, 4))
    told = (" ".join(map(str, x)) for x in (numbers, sorted(numbers)))
    return f"sort {next(told)}", f"ascending : {next(told)}"


def _from(draw: random.Random, _: list[Person]) -> Task:
    start, length = draw.randint(0, 94), draw.randint(3, 5)
    return f"from {start} to {start + length}", "counting : " + " ".join(
        str(start + step) for step in range(1, length + 1)
    )


TASKS = {
    "where": _where, "whose": _whose, "many": _many, "total": _total,
    "say": _say, "back": _back, "sort": _sort, "from": _from,
}  # fmt: skip


def text(draw: random.Random) -> Text:
    """A text: three people, three or four tasks of different kinds, a summary."""
    people = [
        Person(name, draw.randint(1, 9), adjective, thing, place)
        for name, adjective, thing, place in zip(
            *(draw.sample(words, 3) for words in (NAMES, ADJECTIVES, THINGS, PLACES)), strict=True
        )
    ]
    kinds = draw.sample(sorted(TASKS), draw.choice((3, 3, 4)))
    tasks = [TASKS[kind](draw, people) for kind in kinds]
    record = [f"{p.name} keeps {p.number} {p.adjective} {p.things} in {p.place} ." for p in people]
    asked = [f"{ordinal} {said}" for ordinal, (said, _) in zip(ORDINALS, tasks, strict=False)]
    told = [f"{ordinal} {answer} ." for ordinal, (_, answer) in zip(ORDINALS, tasks, strict=False)]
    places = [f"{p.place} has {p.adjective} {p.things}" for p in reversed(people)]
    prompt = f"{' '.join(record)} ask {' '.join(asked)} ?"
    answer = f"{' '.join(told)} summary : {' , '.join(places)} ."
    return Text(tuple(prompt.split()), tuple(answer.split()), "+".join(kinds))


def texts(count: int, seed: int) -> list[Text]:
    """``count`` texts, the same for the same seed."""
    draw = random.Random(seed)
    return [text(draw) for _ in range(count)]


def write_prompts(path: Path, count: int, seed: int) -> Path:
    """Chat prompts for ``draftprobe capture`` and ``decode``, with the right answers beside."""
    lines = [
        json.dumps({"prompt": " ".join(t.prompt), "kind": t.kind, "answer": " ".join(t.answer)})
        for t in texts(count, seed)
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def tokenizer():
    """One token per word, with the chat template above, for transformers' AutoTokenizer."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(WordLevel(dict(IDS), unk_token="<unk>"))
    words.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=words,
        unk_token="<unk>",
        pad_token="<pad>",
        eos_token="<eos>",
        additional_special_tokens=["<user>", "<answer>"],
        chat_template=TEMPLATE,
        model_max_length=256,
    )
