# -*- coding: utf-8 -*-
"""把若干样本拼成一个批次：填充、错位得到标签、生成各种掩码。"""
import torch

IGNORE = -100


def _pad(rows, width, value):
    """右侧补齐到同一长度"""
    return torch.tensor([row + [value] * (width - len(row)) for row in rows], dtype=torch.int64)


def positions_in_document(docs):
    """每个文档内部的位置编号，从零开始"""
    index = torch.arange(docs.shape[1]).expand_as(docs)
    first = torch.ones_like(docs, dtype=torch.bool)
    first[:, 1:] = docs[:, 1:] != docs[:, :-1]
    start = torch.where(first, index, torch.zeros_like(index)).cummax(dim=1).values
    return index - start


class Collator:
    """样本列表 -> 张量字典"""

    def __init__(self, pad_id, seq_length):
        self.pad_id = pad_id
        self.width = seq_length + 1

    def __call__(self, samples):
        tokens = _pad([s["tokens"] for s in samples], self.width, self.pad_id)
        docs = _pad([s["docs"] for s in samples], self.width, -1)   # -1 表示填充
        learn = _pad([s["learn"] for s in samples], self.width, 0)
        inputs, labels = tokens[:, :-1].contiguous(), tokens[:, 1:].clone()
        # 不学习提问部分，也不跨文档预测
        same = docs[:, 1:] == docs[:, :-1]
        target = learn[:, 1:].bool() & same
        labels[~target] = IGNORE
        docs = docs[:, :-1].contiguous()
        return {
            "input_ids": inputs,
            "labels": labels,
            "loss_mask": (labels != IGNORE).float(),
            "position_ids": positions_in_document(docs),
            "doc_ids": docs,
        }
