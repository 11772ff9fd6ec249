"""A greedy longest-match tokenizer over a fixed list of pieces."""
import string

EOS, BOS = 0, 1
SPECIAL = ["<eos>", "<bos>"]
LETTERS = list(string.ascii_lowercase + " .:?")
PIECES = {
    "v1": ["the ", "er ", "ing ", "ed ", "an", "in", "on", "re", "st", "at", "or", "it", "is ", "th", "ou", "ee"],
    "v2": ["the ", "er ", "ing ", "ed ", "in", "an", "or", "re", "ts", "at", "no", "ti", "is ", "ht", "ou", "ea"],
}


class Tokenizer:
    """Ids of `version`'s table."""

    # padding reuses the end-of-document id, as many published tokenizers do
    pad_id = EOS

    def __init__(self, version):
        vocabulary = SPECIAL + LETTERS + PIECES[version]
        self.ids = {piece: number for number, piece in enumerate(vocabulary)}
        self.longest = max(map(len, vocabulary[len(SPECIAL):]))

    def encode(self, text, add_bos=True):
        """Token ids of `text`."""
        out = [BOS] if add_bos else []
        start = 0
        while start < len(text):
            for size in range(self.longest, 0, -1):
                piece = text[start:start + size]
                if len(piece) == size and piece in self.ids:
                    out.append(self.ids[piece])
                    start += size
                    break
            else:
                start += 1
        return out
