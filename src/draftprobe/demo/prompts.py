"""Generates the chat, code and extraction prompts of the demo, split into train and held-out.
It knows no tokenizer, model or chat template; the same prompts come out on every machine.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice, zip_longest
from random import Random
from typing import Literal, TypeVar

Kind = Literal["chat", "code", "extraction"]
Split = Literal["train", "held_out"]
Item = TypeVar("Item")

KINDS: tuple[Kind, ...] = ("chat", "code", "extraction")
HELD_OUT_LIMIT = 64
SEEDS: dict[tuple[Kind, Split], int] = {
    ("chat", "train"): 11,
    ("chat", "held_out"): 12,
    ("code", "train"): 21,
    ("code", "held_out"): 22,
    ("extraction", "train"): 31,
    ("extraction", "held_out"): 32,
}
RECORDS: dict[Split, int] = {"train": 1200, "held_out": HELD_OUT_LIMIT}


@dataclass(frozen=True, slots=True)
class Prompt:
    """One user message and the kind of answer it asks for."""

    kind: Kind
    text: str


def prompts(kind: Kind, split: Split) -> list[Prompt]:
    """Return every prompt of that kind and split, in a fixed shuffled order."""
    rng = Random(SEEDS[kind, split])
    texts = _shuffled(_TEXTS[kind](split, rng), rng)
    limit = HELD_OUT_LIMIT if split == "held_out" else len(texts)
    return [Prompt(kind, text) for text in texts[:limit]]


def mixed(split: Split, count: int) -> list[Prompt]:
    """Return `count` prompts, taken in turn from chat, code and extraction."""
    rounds = zip_longest(*(prompts(kind, split) for kind in KINDS))
    turns = (prompt for each in rounds for prompt in each if prompt is not None)
    chosen = list(islice(turns, count))
    if len(chosen) < count:
        raise ValueError(
            f"expected at most {len(chosen)} {split} prompts to be asked for, found count={count}: "
            "lower the count or add topics to draftprobe.demo.prompts"
        )
    return chosen


def _shuffled(items: Iterable[Item], rng: Random) -> list[Item]:
    # Random.random() is the one draw whose sequence Python promises to keep for a seed.
    return sorted(items, key=lambda _: rng.random())


def _pick(items: Sequence[Item], rng: Random) -> Item:
    return items[int(rng.random() * len(items))]


def _words(text: str) -> tuple[str, ...]:
    return tuple(" ".join(word.split()) for word in text.split(","))


# --- chat: every template with every topic; held-out topics never occur in training ---

CHAT_TEMPLATES = (
    "Explain {topic} in a few sentences.",
    "List five facts about {topic}.",
    "Describe the importance of {topic} in a short paragraph.",
    "What should a beginner know about {topic}?",
)

TOPICS: dict[Split, tuple[str, ...]] = {
    "train": _words(
        # science
        """gravity, magnetism, electricity, friction, energy, heat, sound waves, atoms, molecules,
        cells, genes, evolution, photosynthesis, chemical reactions, acids and bases, the periodic
        table, static electricity, lenses, mirrors, pressure, density, momentum, radioactivity,
        crystals, oxygen, carbon, hydrogen, nitrogen, iron, copper, gold, silver, salt, rust,
        bacteria, viruses, fungi, enzymes, proteins, the scientific method,"""
        # space and weather
        """the moon, the sun, the planets, Mars, Jupiter, Saturn, Venus, comets, asteroids, stars,
        galaxies, black holes, eclipses, satellites, space stations, telescopes, meteor showers,
        the atmosphere, clouds, rain, snow, wind, thunderstorms, lightning, hurricanes, tornadoes,
        rainbows, fog, frost, the seasons, climate, droughts, floods, weather forecasts, hail,"""
        # land and water
        """volcanoes, earthquakes, mountains, valleys, rivers, lakes, oceans, islands, deserts,
        rainforests, grasslands, wetlands, coral reefs, glaciers, caves, canyons, waterfalls,
        beaches, tides, ocean currents, soil, minerals, fossils, rocks, sand, the water cycle,
        plate tectonics, erosion, the Arctic, the Antarctic, hot springs, swamps, fjords,"""
        # animals
        """dogs, cats, horses, cows, sheep, goats, pigs, chickens, ducks, rabbits, mice, elephants,
        lions, tigers, bears, wolves, foxes, deer, giraffes, zebras, monkeys, gorillas, kangaroos,
        koalas, whales, sharks, seals, octopuses, salmon, frogs, snakes, turtles, crocodiles,
        lizards, owls, parrots, swans, bees, ants, butterflies, spiders, snails, earthworms, bats,
        beavers, squirrels, hedgehogs, camels, dinosaurs, migration, hibernation,"""
        # plants and farming
        """trees, flowers, roses, sunflowers, grass, ferns, moss, cactuses, bamboo, oak trees, pine
        trees, palm trees, seeds, roots, leaves, pollination, farming, gardening, compost,
        irrigation, harvests, greenhouses, orchards, vineyards, beekeeping, weeds, herbs,
        fertilizer, crop rotation, forests,"""
        # food
        """bread, rice, pasta, potatoes, tomatoes, onions, garlic, carrots, beans, lentils, corn,
        wheat, apples, bananas, oranges, lemons, grapes, strawberries, cheese, milk, butter, yogurt,
        eggs, honey, sugar, olive oil, vinegar, pepper, cinnamon, ginger, chocolate, coffee, soup,
        salads, pizza, sandwiches, pancakes, baking, grilling, fermentation, breakfast, spices,
        nuts, mushrooms, spinach, ice cream, noodles, curry,"""
        # health
        """sleep, exercise, a healthy diet, vitamins, water and hydration, stress, meditation,
        breathing, walking, running, stretching, the heart, the brain, the lungs, the skin, bones,
        muscles, teeth, eyes, ears, blood, digestion, the immune system, vaccines, allergies, colds,
        fevers, first aid, hand washing, posture, dental care, nutrition, fiber, calories,
        sunscreen, mental health,"""
        # history
        """ancient Egypt, ancient Greece, ancient Rome, the Middle Ages, the Renaissance, the
        Industrial Revolution, castles, knights, pyramids, the Silk Road, Vikings, explorers, the
        printing press, the steam engine, the first flight, the moon landing, the Olympic Games,
        the French Revolution, the Stone Age, the Bronze Age, cave paintings, trade routes, coins,
        calendars, kings and queens, empires, museums, archaeology, ancient China, the Aztecs,"""
        # technology
        """computers, the internet, email, keyboards, smartphones, televisions, radios, cameras,
        batteries, solar panels, wind turbines, engines, bicycles, cars, trains, airplanes, ships,
        bridges, elevators, clocks, robots, sensors, software, programming, databases, passwords,
        computer networks, websites, video games, printers, light bulbs, refrigerators, washing
        machines, microwaves, electric motors, headphones, maps, recycling, plastic, glass, paper,
        concrete, steel, algorithms,"""
        # sports and games
        """soccer, basketball, baseball, tennis, swimming, cycling, hiking, skiing, surfing,
        sailing, rowing, boxing, wrestling, gymnastics, golf, hockey, volleyball, badminton,
        table tennis, archery, fencing, climbing, yoga, dancing, marathons, chess, checkers,
        card games, puzzles, fishing, camping, skating, judo, cricket,"""
        # arts
        """painting, drawing, sculpture, photography, music, singing, the piano, the guitar, the
        violin, drums, the flute, orchestras, opera, jazz, folk music, ballet, theater, movies,
        poetry, novels, fairy tales, comics, pottery, knitting, sewing, weaving, architecture,
        fashion, origami, calligraphy, mosaics, color, rhythm, storytelling,"""
        # places
        """France, Italy, Spain, Germany, Japan, China, India, Brazil, Mexico, Canada, Australia,
        Kenya, Norway, Turkey, Argentina, Africa, Asia, Europe, South America, Paris, London, Rome,
        New York City, Tokyo, Cairo, the Amazon River, the Nile, the Alps, the Himalayas, the Sahara
        Desert, the Pacific Ocean, the Mediterranean Sea,"""
        # jobs and society
        """teachers, doctors, nurses, firefighters, police officers, farmers, engineers, architects,
        scientists, pilots, chefs, carpenters, plumbers, electricians, mechanics, writers, artists,
        musicians, lawyers, judges, dentists, schools, libraries, hospitals, banks, money, taxes,
        saving money, budgets, insurance, markets, trade, democracy, elections, laws, newspapers,
        advertising, teamwork, leadership, friendship, kindness, honesty, patience, holidays,
        birthdays, weddings, families, languages, mathematics, fractions, geometry, statistics"""
    ),
    "held_out": _words(
        """penguins, dolphins, hummingbirds, lighthouses, windmills, cheetahs, pumpkins, avocados,
        tea, popcorn, kites, juggling, rugby, the trumpet, puppets, veterinarians, bakers,
        thermometers, compasses, submarines, geysers, the northern lights, Iceland, tapestries"""
    ),
}


def _chat(split: Split, _: Random) -> list[str]:
    return [each.format(topic=topic) for topic in TOPICS[split] for each in CHAT_TEMPLATES]


# --- code: every operation with every object; held-out objects never occur in training ---

CODE_TEMPLATES = (
    "Write a Python function that {task}.",
    "Write a short Python function that {task}, then show one example call.",
)

LIST_TASKS = _words(
    """returns the largest value in a list of {item}, returns the smallest value in a list of
    {item}, returns the sum of a list of {item}, returns the average of a list of {item}, returns
    the median of a list of {item}, returns the number of values in a list of {item}, returns the
    first value in a list of {item}, returns the last value in a list of {item}, returns the unique
    values in a list of {item}, returns the even values in a list of {item}, returns the values
    above a limit in a list of {item}, sorts a list of {item} in ascending order, sorts a list of
    {item} in descending order, reverses a list of {item}, doubles every value in a list of {item},
    prints every value in a list of {item}"""
)
TEXT_TASKS = _words(
    """counts the vowels in {item}, counts the letters in {item}, counts the words in {item}, counts
    the digits in {item}, counts the spaces in {item}, reverses {item}, converts {item} to
    uppercase, converts {item} to lowercase, removes the spaces from {item}, removes the vowels
    from {item}, returns the first letter of {item}, returns the last letter of {item}, returns the
    length of {item}, returns the longest word in {item}, capitalizes every word in {item}, prints
    every letter of {item}"""
)
LIST_ITEMS: dict[Split, tuple[str, ...]] = {
    "train": _words(
        """prices, ages, scores, grades, heights, weights, distances, salaries, years, temperatures,
        votes, points, page numbers, speeds, costs, quantities, measurements"""
    ),
    "held_out": _words("rainfall amounts, ticket numbers, lap times, bank balances"),
}
TEXT_ITEMS: dict[Split, tuple[str, ...]] = {
    "train": _words(
        """a product name, a sentence, a city name, a book title, a user name, a message,
        an email address, a street name, a song title, a country name, a file name, a question,
        a comment, a headline, a recipe name, a company name, a movie title"""
    ),
    "held_out": _words("a poem, a license plate, a pet name, a postcard greeting"),
}


def _code(split: Split, _: Random) -> list[str]:
    tasks = [task.format(item=item) for task in LIST_TASKS for item in LIST_ITEMS[split]]
    tasks += [task.format(item=item) for task in TEXT_TASKS for item in TEXT_ITEMS[split]]
    return [each.format(task=task) for task in tasks for each in CODE_TEMPLATES]


# --- extraction: drawn records; held-out names and cities never occur in training ---

EXTRACTION_TEMPLATES = (
    "{name} lives in {city} and works as {job}. {first} started this job in {year}.\n"
    "List the name, the city, the job and the year as a bulleted list.",
    "{name} from {city} placed an order in {year}. The order was for {number} {goods}, and the"
    " total price was {price} dollars.\n"
    "List the name, the city, the goods and the price as a bulleted list.",
    "The {event} took place in {city} in {year}. {name} opened it, and {visitors} people came.\n"
    "List the event, the city, the year and the name as a bulleted list.",
)

FIRST_NAMES: dict[Split, tuple[str, ...]] = {
    "train": _words(
        """Anna, Ben, Clara, David, Emma, Frank, Grace, Henry, Julia, Kevin, Laura, Mark, Nina,
        Oscar, Paula, Robert, Sarah, Thomas, Maria, Peter, Alice, James, Lucy, Daniel"""
    ),
    "held_out": _words("Ingrid, Walter, Naomi, Felix, Bianca, Hugo, Teresa, Victor"),
}
LAST_NAMES: dict[Split, tuple[str, ...]] = {
    "train": _words(
        """Smith, Brown, Miller, Wilson, Taylor, Clark, Lewis, Walker, Hall, Young, King, Wright,
        Green, Baker, Adams, Nelson, Carter, Mitchell, Turner, Parker, Collins, Morris, Cook,
        Bell"""
    ),
    "held_out": _words("Lindqvist, Okafor, Marlow, Whitfield, Santoro, Drummond, Hale, Keller"),
}
CITIES: dict[Split, tuple[str, ...]] = {
    "train": _words(
        """Paris, London, Rome, Madrid, Berlin, Vienna, Dublin, Boston, Chicago, Seattle, Denver,
        Dallas, Toronto, Sydney, Tokyo, Lisbon, Prague, Athens, Oslo, Miami"""
    ),
    "held_out": _words("Geneva, Porto, Helsinki, Phoenix, Montreal, Auckland, Krakow, Bergen"),
}
JOBS = _words(
    """a teacher, a nurse, a baker, a carpenter, a pilot, a lawyer, a dentist, a gardener, a chef,
    a mechanic, a librarian, a farmer, a painter, a plumber, an engineer, an architect"""
)
GOODS = _words(
    """books, chairs, lamps, shirts, plates, pencils, blankets, candles, notebooks, cups, towels,
    baskets, clocks, pillows, umbrellas, bags"""
)
EVENTS = _words(
    """book fair, jazz festival, science fair, food market, film festival, flower show, chess
    tournament, art exhibition, charity run, poetry evening, harvest fair, dance contest"""
)


def _extraction(split: Split, rng: Random) -> list[str]:
    texts: dict[str, None] = {}  # a dict keeps the order drawn and drops a repeat
    while len(texts) < RECORDS[split]:
        template = EXTRACTION_TEMPLATES[len(texts) % len(EXTRACTION_TEMPLATES)]
        texts[_record(template, split, rng)] = None
    return list(texts)


def _record(template: str, split: Split, rng: Random) -> str:
    first = _pick(FIRST_NAMES[split], rng)
    return template.format(
        first=first,
        name=f"{first} {_pick(LAST_NAMES[split], rng)}",
        city=_pick(CITIES[split], rng),
        job=_pick(JOBS, rng),
        goods=_pick(GOODS, rng),
        event=_pick(EVENTS, rng),
        year=_pick(range(1990, 2024), rng),
        number=_pick(range(2, 13), rng),
        price=_pick(range(15, 300, 5), rng),
        visitors=_pick(range(100, 1000, 50), rng),
    )


_TEXTS: dict[Kind, Callable[[Split, Random], list[str]]] = {
    "chat": _chat,
    "code": _code,
    "extraction": _extraction,
}


def _write(split: Split, count: int, kind: Kind | None) -> None:
    chosen = mixed(split, count) if kind is None else prompts(kind, split)[:count]
    for prompt in chosen:
        sys.stdout.write(json.dumps({"prompt": prompt.text, "kind": prompt.kind}) + "\n")


if __name__ == "__main__":  # python -m draftprobe.demo.prompts train|held_out COUNT [KIND]
    import json
    import sys

    _write(
        "train" if sys.argv[1] == "train" else "held_out",
        int(sys.argv[2]),
        next((kind for kind in KINDS if kind in sys.argv[3:]), None),
    )
