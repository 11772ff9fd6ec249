"""A small made-up corpus of questions and answers."""
import random

SUBJECTS = ["the cat", "an otter", "the engineer", "one tree", "the teacher", "a stone", "the rain"]
VERBS = ["is waiting", "started", "is on it", "was seen", "rested", "is near", "counted the rest of"]
PLACES = ["at the station", "in the forest", "near an inn", "on the street", "there", "in it"]


def _sentence(draw):
    words = [draw.choice(SUBJECTS), draw.choice(VERBS), draw.choice(PLACES)]
    return " ".join(words)


def documents(seed):
    """Endless (question, answer) pairs, the same for the same seed."""
    draw = random.Random(seed)
    while True:
        asked = draw.choice(["where is ", "who is ", "what is "]) + draw.choice(SUBJECTS)
        answer = ". ".join(_sentence(draw) for _ in range(draw.randint(1, 2)))
        yield asked + "?", answer + "."
