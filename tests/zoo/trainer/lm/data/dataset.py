"""Documents packed into samples of one length."""
from torch.utils.data import Dataset

from lm.data.corpus import documents
from lm.data.tokenizer import BOS, EOS


class PackedDataset(Dataset):
    """Each sample: tokens, the number of the document of each token, and whether it is learnt from."""

    def __init__(self, tokenizer, num_samples, seq_length, seed):
        self.tokenizer = tokenizer
        self.width = seq_length + 1
        source = documents(seed)
        self.samples = [self._pack(source, number) for number in range(num_samples)]

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        return self.samples[index]

    def _document(self, question, answer):
        """The ids of one document; the question is shown, the answer is learnt."""
        prompt = [BOS] + self.tokenizer.encode(question, add_bos=False)
        reply = self.tokenizer.encode(answer, add_bos=False) + [EOS]
        return prompt + reply, [0] * len(prompt) + [1] * len(reply)

    def _pack(self, source, number):
        tokens, docs, learn = [], [], []
        count = 0
        # every third sample holds one document only and is padded later
        while len(tokens) < self.width and not (count and number % 3 == 2):
            ids, mask = self._document(*next(source))
            tokens += ids
            learn += mask
            docs += [count] * len(ids)
            count += 1
        keep = slice(0, self.width - 4 if number % 3 == 2 else self.width)
        return {"tokens": tokens[keep], "docs": docs[keep], "learn": learn[keep]}
