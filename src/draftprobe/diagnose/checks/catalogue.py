"""The static findings: id, title, wire. The one place that makes a Finding of a check.

Knows names, not how anything is found; each id has a page in ``report/findings``.
"""

from __future__ import annotations

from draftprobe.diagnose.verdict import Finding

_STATIC: dict[str, tuple[str, str | None]] = {
    "W106": ("layer ids stand where this engine does not read them", "taps"),
    "W107": ("layer ids that can be read in two ways", "taps"),
    "W108": ("layer ids out of ascending order", "taps"),
    "W109": ("layer ids that repeat", "taps"),
    "W110": ("layer ids of layers that the target does not have", "taps"),
    "W111": ("fc's width does not fit the taps", "taps"),
    "W112": ("this engine fails on these layer ids", "taps"),
    "W113": ("this engine cannot be told to feed the wanted taps", "taps"),
    "W114": ("this engine reads the layer ids otherwise than they are meant", "taps"),
    "W121": ("layer ids stand in two places that do not agree", "taps"),
    "W201": ("a norm before fc in the weights, not in the flags", "pre_fc_norm"),
    "W202": ("a norm before fc in the flags, not in the weights", "pre_fc_norm"),
    "W203": ("norm_before_residual is not what this engine does", "residual"),
    "W204": ("norm_output is not what this engine does", "feedback"),
    "W205": ("norms before fc do not fit the slots", "pre_fc_norm"),
    "W206": ("this engine leaves out the norm before fc", "pre_fc_norm"),
    "W207": ("norm_before_residual is set, and training did not read it", "residual"),
    "W301": ("a reduced draft vocabulary without d2t", "vocabulary"),
    "W302": ("d2t is all zero", "vocabulary"),
    "W303": ("d2t holds absolute ids instead of offsets", "vocabulary"),
    "W304": ("d2t points outside the target's vocabulary", "vocabulary"),
    "W305": ("d2t does not increase", "vocabulary"),
    "W306": ("d2t and t2d disagree", "vocabulary"),
    "W307": ("the draft vocabulary covers too little of the text", "vocabulary"),
    "W308": ("tie_word_embeddings beside a head of its own", "head"),
    "W309": ("this engine replaces a table that differs from the target's", "embedding"),
    "W310": ("the drafter's embedding has nothing of the target's", "embedding"),
    "W311": ("tensors that this engine drops", None),
    "W312": ("tensors that this engine leaves at their initial value", None),
    "W313": ("tensors of no known layout", None),
    "W314": ("tensors that a drafter needs are missing", None),
    "W315": ("shapes that do not fit the config", None),
    "W317": ("a vocabulary table of another form", "vocabulary"),
    "W401": ("rope theta unlike the target's", "rope"),
    "W402": ("rope scaling unlike the target's", "rope"),
    "W403": ("rotated share of the head unlike the target's", "rope"),
    "W404": ("the drafter's positions end before the target's", "rope"),
    "W405": ("the rope theta in the config is not what training used", "rope"),
    "W501": ("NaN or infinity in the weights", None),
    "W502": ("weights beyond half precision", None),
    "W506": ("fc, or a slot of it, is zero", "taps"),
    "S101": ("hidden sizes of drafter and target do not fit", None),
    "S102": ("vocabularies of drafter and target do not fit", None),
    "S103": ("tokenizers of drafter and target differ", None),
    "S104": ("this engine refuses the folder", None),
    "S105": ("a key that this engine does not honour", None),
    "S106": ("capture of states is switched off", None),
    "S108": ("the golden file says another wiring than the config", None),
}

STATIC = tuple(_STATIC)
"""Every id that files alone can raise."""


def finding(
    identifier: str, evidence: str, served: str | None = None, wanted: str | None = None
) -> Finding:
    """A Finding of this id, with title and wire of the catalogue and no measured severity."""
    title, wire = _STATIC[identifier]
    return Finding(identifier, title, wire, None, served, wanted, evidence)
