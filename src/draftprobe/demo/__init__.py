"""Makes the demo: a small drafter trained on generated prompts, and the prompts it is shown with.
Nothing here knows how a drafter is diagnosed; the rest of the package never imports it.
"""
