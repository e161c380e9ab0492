"""Which Wiring, all wires together, do these weights want? Asked of recorded text by replay.

From the served wiring, each wire's other values are replayed on the same chains and compared token
by token; the clearest that helps is taken, and so on to a fixed point; then pairs, where the level
is still that of a guess. What was served is kept wherever nothing clearly beats it, so a wire is
named only on evidence. Knows wirings and their replays; taps are proposed by the caller.

    A value beats another where the mean gain per chain, in nats or in accepted drafts, exceeds T
    standard errors over sequences, T being Student's t for an error of 1 % over all that is
    compared (Holm; shared out to the looks and the two witnesses). It only counts where accepted
    drafts grow: likelihood alone may gain by a mere change of temperature.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from math import ceil

from draftprobe.diagnose.bench import Bench, Duel
from draftprobe.diagnose.race import threshold
from draftprobe.diagnose.wire_evidence import Joint, Status, Tied, WireEvidence
from draftprobe.diagnose.wires import WIRES, Facts, Wire, changed, neighbours, told
from draftprobe.drafter.wiring import Wiring
from draftprobe.measure.interval import Estimate

LEVEL = 0.01
HARM = 0.02
"""Expected acceptance length below which a difference is called harmless."""

_RATIO = 0.5  # step-2 accuracy over step 1's, below which the loop was hardly trained
_ROUNDS = 12
_SUBSETS = 5  # changes of which every subset is tried

Propose = Callable[[Wiring, bool], Sequence[Wiring]]
"""A wiring -> the same wires with the taps that are served and that the weights name; with true,
first of all those that a search finds under these wires. Without it there may be none."""


@dataclass
class _Ascent:
    """One search: the bench, what is compared, and what was seen."""

    bench: Bench
    facts: Facts
    budget: int
    say: Callable[[str], None]
    seen: set[Wiring] = field(default_factory=set)

    # ---- one comparison -------------------------------------------------------------------

    def duel(self, a: Wiring, b: Wiring, look: int) -> Duel:
        self.seen |= {a, b}
        return self.bench.duel(a, b, look)

    def helps(self, a: Wiring, b: Wiring, guessing: bool, look: int) -> bool:
        """Accepted drafts grow from ``a`` to ``b``; from a mere guess likelihood may lead."""
        gain = self.bench.acceptance(a, b, look)
        if guessing or gain.value is None:
            return guessing
        if look < self.bench.looks[-1]:
            return gain.value > 0
        return gain.low is not None and gain.low > 0

    def movers(
        self, now: Wiring, others: Iterable[Wiring], looks: Sequence[int]
    ) -> tuple[list[Wiring], dict[Wiring, Duel]]:
        """Those that clearly beat ``now`` and help, best first; and every last duel.

        Looks grow only as long as nothing is found. Others drop out once ``now`` beats them.
        """
        alive = [w for w in dict.fromkeys(others) if w != now and self.bench.allows(w)]
        duels: dict[Wiring, Duel] = {}
        found: list[tuple[float, float, Wiring]] = []
        for look in looks:
            for other in alive:
                duels[other] = self.duel(now, other, look)
            share = LEVEL * look / sum(self.bench.looks)
            gone = holm({w: duels[w].worse for w in alive}, share, duels)
            better = holm({w: duels[w].better for w in alive if w not in gone}, share, duels)
            guessing = bool(better) and self.guessing(now, look)
            found = [
                (duels[w].accepted.value or 0.0, duels[w].gain.value or 0.0, w)
                for w in better
                if self.helps(now, w, guessing, look)
            ]
            if found:
                break
            alive = [w for w in alive if w not in gone and not duels[w].same]
        return [w for *_, w in sorted(found, key=lambda row: row[:2], reverse=True)], duels

    def guessing(self, wiring: Wiring, look: int | None = None) -> bool:
        """Step 1 does not clearly beat the share of the most frequent token."""
        self.seen.add(wiring)
        gain = self.bench.over_guess(wiring, look)
        return gain.low is None or gain.low <= 0

    # ---- the way up -----------------------------------------------------------------------

    def ascend(self, now: Wiring, looks: Sequence[int]) -> Wiring:
        """Single wires, the clearest help first, until none helps."""
        visited = {now}
        for _ in range(_ROUNDS):
            found, _ = self.movers(now, neighbours(now, self.facts), looks)
            fresh = [w for w in found if w not in visited]
            if not fresh:
                break
            now = fresh[0]
            visited.add(now)
        return now

    def pairs(self, now: Wiring) -> Wiring:
        """The pair of wires whose change helps most, on the first look; ``now`` if none does."""
        first = neighbours(now, self.facts)
        ranked = sorted(
            (w for w in first if self.bench.allows(w)),
            key=lambda w: -self.bench.score(w, self.bench.looks[0]),
        )
        both = []
        for one, other in combinations(ranked, 2):
            if first[one].name != first[other].name:
                both.append(first[other].put(one, first[other].value(other)))
        found, _ = self.movers(now, both[: self.budget], self.bench.looks[:1])
        return found[0] if found else now

    def settle(self, served: Wiring, propose: Propose) -> Wiring:
        """Coarse ascents from what is known of the taps, then from what a search finds; the best.

        The taps are searched again where a wire of step 1 has changed.
        """
        looks = self.bench.looks
        best = self.climb(propose(served, False) or propose(served, True))
        for turn in range(3):
            before = best
            found = [*propose(best, True)]
            if turn == 0 and self.guessing(best):
                found += [*propose(served, True)]
            best = self.climb([best, *found])
            if turn == 0 and self.guessing(best):
                self.say("replaying pairs of wires: no single one lifts the drafter over a guess")
                best = self.ascend(self.pairs(best), looks[:1])
            if not _step_one(before, best):
                break
        return self.ascend(best, looks)

    def climb(self, starts: Sequence[Wiring]) -> Wiring:
        """The best end of coarse ascents from these."""
        allowed = [start for start in dict.fromkeys(starts) if self.bench.allows(start)]
        return self.best([self.ascend(start, self.bench.looks[:1]) for start in allowed])

    def best(self, wirings: Sequence[Wiring]) -> Wiring:
        """The first that no other clearly beats with more accepted drafts."""
        now = wirings[0]
        for other in dict.fromkeys(wirings[1:]):
            last = self.bench.looks[-1]
            duel = self.duel(now, other, last)
            clear = duel.better > threshold(LEVEL / 2, max(2, duel.gain.clusters))
            if clear and self.helps(now, other, self.guessing(now), last):
                now = other
        return now

    # ---- what is kept of it ---------------------------------------------------------------

    def needed_changes(self, served: Wiring, wanted: Wiring) -> Wiring:
        """The fewest of ``wanted``'s changes without which accepted drafts would clearly be lost.

        Of sets of one size the likeliest; from six changes on they are taken back one at a time.
        """
        wires = changed(wanted, served)
        while len(wires) > _SUBSETS:
            back = [wire.put(wanted, wire.value(served)) for wire in wires]
            free = [other for other in back if not self.lost(other, wanted)]
            if not free:
                return wanted
            wanted = max(free, key=self.bench.score)
            wires = changed(wanted, served)
        for size in range(len(wires)):
            some = [_put(served, wanted, kept) for kept in combinations(wires, size)]
            free = [other for other in some if not self.lost(other, wanted)]
            if free:
                return max(free, key=self.bench.score)
        return wanted

    def lost(self, other: Wiring, wanted: Wiring) -> bool:
        """``other`` is clearly beaten by ``wanted``, and clearly fewer drafts are accepted."""
        looks = self.bench.looks
        return any(
            self.material(other, wanted, look) for look in dict.fromkeys((looks[0], looks[-1]))
        )

    def material(self, other: Wiring, wanted: Wiring, look: int) -> bool:
        """The same at one look."""
        duel = self.duel(other, wanted, look)
        loss = duel.accepted
        material = loss.value is not None and loss.low is not None and loss.low > 0
        return self.clear(duel) and material and (loss.value or 0.0) >= HARM

    def clear(self, duel: Duel) -> bool:
        """Beaten with all wires counted as comparisons."""
        clusters = max(2, duel.gain.clusters)
        return duel.better > threshold(LEVEL / len(WIRES) / 2, clusters)

    def rivals(self, wire: Wire, served: Wiring, wanted: Wiring) -> tuple[str, ...]:
        """Single changes of other wires that, in this wire's place, explain the text as well."""
        without = wire.put(wanted, wire.value(served))
        found = []
        for other, by in neighbours(without, self.facts).items():
            if by.name == wire.name or not self.bench.allows(other):
                continue
            if not self.lost(other, wanted):
                found.append(f"{by.name} {told(by, other)}")
        return tuple(found)


def holm(t: dict[Wiring, float], level: float, duels: dict[Wiring, Duel]) -> set[Wiring]:
    """Which differ clearly, all counted (Holm): the largest first, each on what is left."""
    out: set[Wiring] = set()
    for left, wiring in zip(range(len(t), 0, -1), sorted(t, key=lambda w: -t[w]), strict=True):
        clusters = duels[wiring].gain.clusters
        if clusters < 2 or t[wiring] <= threshold(level / left / 2, clusters):
            break
        out.add(wiring)
    return out


def _put(served: Wiring, wanted: Wiring, kept: Iterable[Wire]) -> Wiring:
    """``served`` with these wires as wanted."""
    for wire in kept:
        served = wire.put(served, wire.value(wanted))
    return served


def _step_one(one: Wiring, other: Wiring) -> bool:
    return any(wire.step == 1 and wire.name != "taps" for wire in changed(one, other))


def joint(
    bench: Bench,
    facts: Facts,
    served: Wiring,
    propose: Propose,
    say: Callable[[str], None] = lambda stage: None,
    budget: int = 150,
) -> Joint:
    """Search all wires together, from ``served``.

    Args:
        bench: what wirings are replayed on.
        facts: what alternatives depend on.
        served: where the search starts, and what is kept wherever nothing clearly beats it.
        propose: taps worth trying under a wiring, the likeliest first.
        say: told each stage.
        budget: most pairs of wires that are tried.
    """
    search = _Ascent(bench, facts, budget, say)
    best = search.settle(served, propose)
    start = replace(served, taps=best.taps)
    wanted = search.needed_changes(start, best)
    say("comparing each wire's values under the wanted wiring")
    _, duels = search.movers(wanted, neighbours(wanted, facts), bench.looks)
    wires = tuple(
        _evidence(search, wire, start, wanted, duels) for wire in WIRES if wire.name != "taps"
    )
    kept = _kept(start, wanted, wires)
    observed = bench.observed(wanted)
    return Joint(
        served=start,
        wanted=kept,
        wires=wires,
        wirings=len(search.seen),
        replays=bench.replays,
        chains=len(observed.slot),
        sequences=bench.sequences,
        guessing=search.guessing(wanted),
    )


def _kept(start: Wiring, wanted: Wiring, wires: Sequence[WireEvidence]) -> Wiring:
    """Only what was found cut is changed."""
    cut = {wire.wire for wire in wires if wire.status == "cut"}
    for wire in changed(wanted, start):
        if wire.name not in cut:
            wanted = wire.put(wanted, wire.value(start))
    return wanted


def _evidence(
    search: _Ascent, wire: Wire, start: Wiring, wanted: Wiring, duels: dict[Wiring, Duel]
) -> WireEvidence:
    """What became of one wire."""
    bench = search.bench
    others = [w for w in wire.alternatives(wanted, search.facts, False) if w in duels]
    tied = tuple(
        Tied(
            told(wire, w),
            _turned(duels[w].gain),
            duels[w].same,
            _turned(bench.acceptance(wanted, w)),
        )
        for w in others
        if not _beaten(search, wanted, w, duels[w])
    )
    words = (wire.name, wire.finding, wire.title, told(wire, start), told(wire, wanted))
    if wire.value(start) == wire.value(wanted):
        words_of = {value.value for value in tied}
        needed = [_needed(search, duels[w]) for w in others if told(wire, w) in words_of]
        most = max((n for n in needed if n is not None), default=None)
        status: Status = "not separable" if tied else "right" if others else "nothing to try"
        return WireEvidence(*words, status, tied, needed=most)
    other = wire.put(wanted, wire.value(start))
    duel, loss = search.duel(other, wanted, bench.looks[-1]), bench.acceptance(other, wanted)
    rivals = search.rivals(wire, start, wanted)
    status = _accused(bench, wire, wanted, loss, rivals)
    needed = _needed(search, duel) if status == "open" else None
    return WireEvidence(*words, status, tied, loss, duel.gain, duel.t, rivals, needed)


def _accused(
    bench: Bench, wire: Wire, wanted: Wiring, loss: Estimate, rivals: Sequence[str]
) -> Status:
    """A wire whose served value is beaten: cut, or why not."""
    if loss.low is None or loss.high is None or loss.value is None:
        return "open"
    if loss.high < HARM:
        return "harmless"
    if rivals:
        return "ambiguous"
    if wire.step == 2 and not _loop_trained(bench, wanted):
        return "open"
    return "cut" if loss.low > 0 and loss.value >= HARM else "open"


def _loop_trained(bench: Bench, wiring: Wiring) -> bool:
    """Step 2 is at least half as accurate as step 1: the drafter has learned to feed itself."""
    steps = bench.summary(wiring, "").steps
    first, second = (steps[i].top1.value for i in (0, 1)) if len(steps) > 1 else (None, None)
    return first is not None and second is not None and second >= _RATIO * first


def _beaten(search: _Ascent, wanted: Wiring, other: Wiring, duel: Duel) -> bool:
    """The value of this duel's second wiring is beaten by the wanted one, with drafts lost."""
    clusters = max(2, duel.gain.clusters)
    clear = duel.worse > threshold(LEVEL / len(WIRES) / 2, clusters)
    return clear and search.lost(other, wanted)


def _turned(estimate: Estimate) -> Estimate:
    """The difference the other way round."""
    ends = (estimate.value, estimate.high, estimate.low)
    value, low, high = (None if x is None else -x for x in ends)
    return Estimate(value, low, high, estimate.n, estimate.clusters)


def _needed(search: _Ascent, duel: Duel) -> int | None:
    """Tokens at which a gain of this size and spread would be clear; None where none would."""
    gain = duel.gain
    clearest = max(abs(duel.t), abs(duel.u))
    if duel.same or not gain.n or clearest == float("inf") or not clearest:
        return None
    wanted = threshold(LEVEL / len(WIRES) / 2, max(2, gain.clusters))
    chains = gain.n * max(1.0, wanted / clearest) ** 2
    return ceil(chains * search.bench.steps) if chains < 1e7 else None
