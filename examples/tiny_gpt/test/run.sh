#!/usr/bin/env bash
# One training of this side: log in logs/train.log, msprobe dump in dump/step0.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

export PYTHONUNBUFFERED=1
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"

MODEL_ARGS=(
    --num-layers 2
    --hidden-size 64
    --num-attention-heads 4
    --num-query-groups 2
    --seq-length 32
    --vocab-size 128
    --mtp-num-layers 1
)
TRAINING_ARGS=(
    --micro-batch-size 4
    --global-batch-size 8
    --train-iters 6
    --lr 3.0e-3
    --min-lr 3.0e-4
    --lr-warmup-iters 2
    --clip-grad 1.0
    --seed 1234
)

mkdir -p logs
"${PYTHON:-python3}" code/pretrain_gpt.py "${MODEL_ARGS[@]}" "${TRAINING_ARGS[@]}" "$@" 2>&1 | tee logs/train.log
