"""GPT language model with multi-token-prediction heads."""

import math

import torch
import torch.nn.functional as F

from model.multi_token_prediction import MultiTokenPredictionLayer, roll_tensor
from model.norm import RMSNorm
from model.rotary_pos_embedding import RotaryEmbedding
from model.transformer import TransformerBlock


def init_weights(model, std, num_layers):
    """Normal initialisation; projections that write to the residual stream start smaller."""
    scaled_std = std / math.sqrt(2.0 * num_layers)
    for name, parameter in model.named_parameters():
        if parameter.dim() < 2:
            continue
        residual = name.endswith(("linear_proj.weight", "linear_fc2.weight"))
        torch.nn.init.normal_(parameter, mean=0.0, std=scaled_std if residual else std)


def build_causal_mask(seq_length):
    """True where a key lies in the future of the query."""
    return torch.ones(seq_length, seq_length, dtype=torch.bool).triu(diagonal=1)


class GPTModel(torch.nn.Module):
    """Embedding, decoder, output layer, and MTP heads that share the embedding and the output layer."""

    def __init__(self, config):
        super().__init__()
        self.mtp_loss_scaling_factor = config.mtp_loss_scaling_factor
        self.word_embeddings = torch.nn.Embedding(config.vocab_size, config.hidden_size)
        self.rotary_pos_emb = RotaryEmbedding(
            config.hidden_size // config.num_attention_heads, rotary_base=config.rotary_base
        )
        self.decoder = TransformerBlock(config)
        self.final_layernorm = RMSNorm(config.hidden_size, config.norm_epsilon)
        self.mtp_layers = torch.nn.ModuleList(MultiTokenPredictionLayer(config) for _ in range(config.mtp_num_layers))
        self.output_layer = torch.nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        init_weights(self, config.init_method_std, config.num_layers)

    def _compute_language_model_loss(self, hidden_states, labels):
        """Cross entropy of every token, in fp32."""
        logits = self.output_layer(hidden_states).float()
        loss = F.cross_entropy(logits.view(-1, logits.size(-1)), labels.reshape(-1), reduction="none")
        return loss.view(labels.size())

    def _mtp_losses(self, hidden_states, tokens, labels, loss_mask, attention_mask, rotary_pos_emb):
        """Return a pair (loss of every token, its mask) for each MTP head."""
        losses = []
        for layer in self.mtp_layers:
            tokens, labels, loss_mask = roll_tensor(tokens), roll_tensor(labels), roll_tensor(loss_mask)
            decoder_input = self.word_embeddings(tokens)
            hidden_states = layer(hidden_states, decoder_input, attention_mask, rotary_pos_emb)
            loss = self._compute_language_model_loss(layer.final_layernorm(hidden_states), labels)
            losses.append((loss, loss_mask))
        return losses

    def forward(self, tokens, position_ids, labels, loss_mask):
        """Return the loss of every token and the pairs of the MTP heads."""
        attention_mask = build_causal_mask(tokens.size(1))
        rotary_pos_emb = self.rotary_pos_emb(position_ids)

        hidden_states = self.decoder(self.word_embeddings(tokens), attention_mask, rotary_pos_emb)
        lm_loss = self._compute_language_model_loss(self.final_layernorm(hidden_states), labels)
        mtp_losses = self._mtp_losses(hidden_states, tokens, labels, loss_mask, attention_mask, rotary_pos_emb)
        return lm_loss, mtp_losses
