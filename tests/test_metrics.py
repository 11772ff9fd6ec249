"""Section 6: reading loss and grad norm from any log, and comparing the two curves.

`tests/logs/` has real formats with the right reading of each; the table below has more, in the shapes that public logs have.
"""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import pytest

import precision_comparer
from precision_comparer import (
    MetricReader,
    Metrics,
    Phase,
    RunError,
    Series,
    compare_metrics,
    phase_from_curves,
    read_metrics,
    result_block,
    score_log,
)

LOGS = sorted((Path(__file__).parent / "logs").glob("*.json"))
ESC = "\x1b"


def read(data: bytes, keywords: list, chunk: int = 1 << 20) -> Metrics:
    """Feed `data` in pieces of `chunk` bytes."""
    reader = MetricReader(keywords)
    for start in range(0, len(data), chunk):
        reader.feed(data[start : start + chunk])
    return reader.finish()


def rows(metrics: Metrics) -> list[list]:
    """`[step, loss, grad norm]` rows as the json files have them, values as text so that NaN equals NaN."""
    loss, norm = (metrics.series[name].values if name in metrics.series else {} for name in ("loss", "grad_norm"))
    return as_text([step, loss.get(step), norm.get(step)] for step in sorted({*loss, *norm}))


def as_text(table) -> list[list]:
    """Rows with every value as the text of a float."""
    return [[step, *(None if value is None else str(float(value)) for value in values)] for step, *values in table]


@pytest.mark.parametrize("chunk", [1 << 20, 100, 7, 1])
@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_real_logs(path: Path, chunk: int) -> None:
    """Every log is read as its json says, wherever the pieces are cut."""
    truth = json.loads(path.read_text(encoding="utf-8"))
    metrics = read(path.with_suffix(".log").read_bytes(), [truth["loss_keyword"], truth["grad_norm_keyword"]], chunk)
    right = [as_text(truth["expected"])] + [as_text(truth[key]) for key in ("expected_alt",) if key in truth]
    assert rows(metrics) in right


def test_all_logs_are_there() -> None:
    """33 formats."""
    assert len(LOGS) == 33


# name, keywords, log, right reading as (step, loss, grad norm)
FORMATS = [
    ("deepspeed-chat", ["act_loss", None],
     "|E2E latency=2.12s |Gather latency=0.00s (0.00%) |Training time=0.42s (19.78%)|CurSamplesPerSec=1.89 |AvgSamplesPerSec=1.95\n"
     "epoch: 0|step: 3183|ppo_ep: 1|act_loss: 30.921875|cri_loss: 30.515625|unsuper_loss: 0.0\naverage reward score: -7.80859375\n-----\n"
     "epoch: 0|step: 3184|ppo_ep: 1|act_loss: inf|cri_loss: inf|unsuper_loss: 0.0\naverage reward score: -6.359375\n-----\n"
     "epoch: 0|step: 3185|ppo_ep: 1|act_loss: -2.5|cri_loss: inf|unsuper_loss: 0.0\n",
     [(3183, 30.921875, None), (3184, "inf", None), (3185, -2.5, None)]),
    ("mmdet-old", ["loss", None],
     "2020-05-21 04:01:33,217 - mmdet - INFO - workflow: [('train', 1)], max: 12 epochs\n"
     "2020-05-21 04:01:33,217 - mmdet - INFO - Epoch [1][50/100]\tlr: 0.00020, eta: 1 day, 16:44:26, time: 1.413, data_time: 0.116, memory: 9581, loss_rpn_cls: 0.6978, s0.loss_cls: 0.4852, s0.acc: 92.1875, loss: 3.0130\n"
     "2020-05-21 04:01:35,520 - mmdet - INFO - Epoch [1][100/100]\tlr: 0.00020, eta: 1 day, 16:52:19, time: 2.304, data_time: 0.645, memory: 9581, loss_rpn_cls: 0.6956, s0.loss_cls: 0.5382, s0.acc: 80.6641, loss: 2.8716\n"
     "2020-05-21 04:01:36,520 - mmdet - INFO - Epoch(val) [1][20] bbox_mAP: 0.2010, loss: 2.9000\n"
     "2020-05-21 04:01:37,207 - mmdet - INFO - Epoch [2][50/100]\tlr: 0.00020, eta: 1 day, 16:26:13, time: 1.686, data_time: 0.330, memory: 9581, loss_rpn_cls: 0.7000, s0.loss_cls: 0.4579, s0.acc: 85.5938, loss: 2.6729\n",
     [(50, 3.013, None), (100, 2.8716, None), (150, 2.6729, None)]),
    ("mmengine-epoch-grad-first", ["loss", "grad_norm"],
     "07/04 08:12:50 - mmengine - INFO - Epoch(train)  [1][ 750/7393]  base_lr: 3.7531e-05 lr: 3.7531e-05  eta: 3 days, 9:40:59  time: 0.5451  memory: 14765  grad_norm: 45.8713  loss: 37.4994  loss_cls: 0.5150  d0.loss_cls: 0.5015\n"
     "07/04 08:13:18 - mmengine - INFO - Epoch(train)  [1][ 800/7393]  base_lr: 4.0030e-05 lr: 4.0030e-05  eta: 3 days, 9:33:46  time: 0.5410  memory: 14765  grad_norm: 45.5470  loss: 36.6604  loss_cls: 0.4964  d0.loss_cls: 0.4800\n"
     "07/04 08:13:28 - mmengine - INFO - Epoch(val)  [1][ 20/80]  eta: 0:00:08  time: 0.1  loss: 30.0\n",
     [(750, 37.4994, 45.8713), (800, 36.6604, 45.547)]),
    ("detectron2", ["total_loss", None],
     "[04/05 01:30:24 d2.utils.events]:  eta: 0:03:35  iter: 19  total_loss: 1.36  loss_cls: 0.6522  loss_box_reg: 0.5817  time: 0.3636  data_time: 0.1102  lr: 3.8077e-06  max_mem: 433M\n"
     "[04/05 01:30:31 d2.utils.events]:  eta: N/A  iter: 39  total_loss: 1.353  loss_cls: 0.6354  loss_box_reg: 0.637    lr: 7.5527e-06  max_mem: 433M\n"
     "[04/05 01:30:35 d2.evaluation.evaluator]: Inference done 11/50. 0.05 s / img. ETA=0:00:02\n"
     "[04/05 01:30:36 d2.utils.events]:  eta: 0:02:45  iter: 59  total_loss: nan  loss_cls: nan  loss_box_reg: 0.5782  time: 0.3147  lr: 1.1298e-05  max_mem: 433M\n",
     [(19, 1.36, None), (39, 1.353, None), (59, "nan", None)]),
    ("detectron1-json-stats", ["loss", None],
     'json_stats: {"accuracy_cls": 1.000000, "eta": "0:21:51", "iter": 55080, "loss": 0.024404, "loss_bbox": 0.000645, "lr": 0.000025, "mb_qsize": 64, "mem": 3084, "time": 0.266505}\n'
     'json_stats: {"accuracy_cls": 0.998000, "eta": "0:21:44", "iter": 55100, "loss": 0.031211, "loss_bbox": 0.000912, "lr": 0.000025, "mb_qsize": 64, "mem": 3084, "time": 0.266505}\n',
     [(55080, 0.024404, None), (55100, 0.031211, None)]),
    ("llama2-accessory", ["closs", "grad_norm"],
     "[07:15:39.400163] Epoch: [2]  [1480/1504]  lr: 0.000005  closs: 0.8662 (0.8558)  grad_norm: 0.2537 (0.3329)  time: 4.3713  data: 0.0001  max mem: 51710\n"
     "[07:16:21.232598] Epoch: [2]  [1490/1504]  lr: 0.000005  closs: 0.6968 (0.8547)  grad_norm: 0.2531 (0.3329)  time: 4.1840  data: 0.0001  max mem: 51710\n"
     "[07:17:02.964445] Epoch: [2]  [1500/1504]  lr: 0.000005  closs: 0.6923 (0.8536)  grad_norm: 0.2540 (0.3329)  time: 4.1781  data: 0.0002  max mem: 51710\n"
     "[07:17:15.926522] Epoch: [2] Total time: 1:52:15\n"
     "[07:17:15.963773] Averaged stats: lr: 0.000005  closs: 0.6884 (0.8518)  grad_norm: 0.2534 (0.3311)\n",
     [(1480, 0.8662, 0.2537), (1490, 0.6968, 0.2531), (1500, 0.6923, 0.254)]),
    ("fairseq-2018-two-epochs", ["loss", "gnorm"],
     "| epoch 010  1000 / 3000 loss=1.27 (1.50), wps=962, wpb=908, bsz=32, lr=0.001, clip=100%, gnorm=2.1427\n"
     "| epoch 010  2000 / 3000 loss=1.28 (1.49), wps=962, wpb=908, bsz=32, lr=0.001, clip=100%, gnorm=2.1507\n"
     "| epoch 010 | train loss 1.44 | train ppl 2.72 | s/checkpoint    7747 | words/s    961 | bsz    32 | lr 0.001000 | clip 100%\n"
     "| epoch 010 | valid on 'valid' subset  1000 / 1311 loss=1.60\n"
     "| epoch 010 | valid on 'valid' subset | valid loss 1.94 | valid ppl 3.83\n"
     "| epoch 011  1000 / 3000 loss=1.89 (1.38), wps=963, wpb=918, bsz=32, lr=0.001, clip=100%, gnorm=2.0860\n",
     [(1000, 1.27, 2.1427), (2000, 1.28, 2.1507), (4000, 1.89, 2.086)]),
    ("fairseq-json-log", ["loss", "gnorm"],
     '2021-07-01 10:00:00 | INFO | train_inner | {"epoch": 1, "update": 0.05, "loss": "11.508", "nll_loss": "10.866", "ppl": "1866.1", "wps": "48310", "num_updates": "100", "lr": "6.02e-05", "gnorm": "1.539", "train_wall": "756"}\n'
     '2021-07-01 10:01:00 | INFO | train_inner | {"epoch": 1, "update": 0.1, "loss": "11.332", "nll_loss": "10.661", "ppl": "1619.2", "wps": "48702", "num_updates": "200", "lr": "7.02e-05", "gnorm": "1.502", "train_wall": "840"}\n'
     '2021-07-01 10:02:00 | INFO | valid | {"epoch": 1, "valid_loss": "8.1", "valid_num_updates": "200"}\n',
     [(100, 11.508, 1.539), (200, 11.332, 1.502)]),
    ("icefall", ["loss", None],
     "2022-04-29 10:31:17,699 INFO [train.py:756] Epoch 0, batch 0, loss[loss=0.5521, simple_loss=1.104, pruned_loss=8.767, over 2432.00 frames.], tot_loss[loss=0.5521, simple_loss=1.104, over 2432.00 frames.], batch size: 32, lr: 3.00e-03\n"
     "2022-04-29 10:31:21,003 INFO [train.py:756] Epoch 0, batch 50, loss[loss=0.474, simple_loss=0.948, pruned_loss=8.545, over 2494.00 frames.], tot_loss[loss=0.5125, simple_loss=1.025, over 4913.84 frames.], batch size: 86, lr: 3.00e-03\n"
     "2022-04-29 10:31:22,003 INFO [train.py:790] Epoch 0, validation: loss=0.41, simple_loss=0.8, over 1000.00 frames.\n"
     "2022-04-29 10:31:24,395 INFO [train.py:756] Epoch 0, batch 100, loss[loss=0.5441, simple_loss=1.088, pruned_loss=8.671, over 2485.00 frames.], tot_loss[loss=0.5231, simple_loss=1.046, over 7374.27 frames.], batch size: 71, lr: 3.00e-03\n",
     [(0, 0.5521, None), (50, 0.474, None), (100, 0.5441, None)]),
    ("espnet1", ["train loss", None],
     "iterations:16335, train acc:0.258, train loss:477.674, train loss ctc:857.277, train loss att:98.071,\n"
     "iterations:16336, train acc:0.398, train loss:686.486, train loss ctc:1277.490, train loss att:95.482,\n"
     "iterations:16337, train acc:0.288, train loss:459.261, train loss ctc:834.635, train loss att:83.887,\n",
     [(16335, 477.674, None), (16336, 686.486, None), (16337, 459.261, None)]),
    ("espnet2", ["loss", None],
     "[gpu01:0/2] 2020-07-19 08:49:04,080 (trainer:464) INFO: 1epoch:train:1-682batch: iter_time=2.878e-04, forward_time=0.134, loss=123.963, loss_att=77.448, loss_ctc=232.499, acc=0.013\n"
     "[gpu01:0/2] 2020-07-19 08:54:09,601 (trainer:464) INFO: 1epoch:train:683-1364batch: iter_time=5.862e-05, forward_time=0.134, loss=68.722, loss_att=65.930, loss_ctc=75.235, acc=0.125\n"
     "[gpu01:0/2] 2020-07-19 08:59:15,042 (trainer:464) INFO: 1epoch:train:1365-2046batch: iter_time=5.663e-05, forward_time=0.134, loss=61.936, loss_att=59.201, loss_ctc=68.318, acc=0.134\n",
     [(682, 123.963, None), (1364, 68.722, None), (2046, 61.936, None)]),
    ("pith-train", ["cross-entropy-loss", "gradient-norm"],
     "2026-04-01 14:06:36 | INFO | step 00000001/00000015 | step-time 73.352 sec | cross-entropy-loss 2.6636 | load-balance-loss 0.001807 | learning-rate 1.000000e-06 | gradient-norm 20.2657 | tokens-per-second 28,590 | peak-gpu-memory 63.65 GB\n"
     "2026-04-01 14:07:05 | INFO | step 00000002/00000015 | step-time 28.823 sec | cross-entropy-loss 2.5949 | load-balance-loss 0.001803 | learning-rate 1.000000e-06 | gradient-norm 20.0672 | tokens-per-second 72,759 | peak-gpu-memory 63.84 GB\n",
     [(1, 2.6636, 20.2657), (2, 2.5949, 20.0672)]),
    ("lion-two-counters", ["Loss", None],
     "2023-01-25 00:21:09.074 | INFO     | trainers.base_trainer:train_epochs:256 - [R0] | E5 iter[ 14/ 15] | [Loss] 51566519.44 | [exp] ./exp/0125/car | [step]    89 | [url] none | [time] 0.4m (~5h) |[best] 0 -100.000x1e-2 \n"
     "2023-01-25 00:21:34.569 | INFO     | trainers.base_trainer:train_epochs:256 - [R0] | E6 iter[ 14/ 15] | [Loss] nan | [exp] ./exp/0125/car | [step]   104 | [url] none | [time] 0.4m (~5h) |[best] 0 -100.000x1e-2 \n"
     "2023-01-25 00:22:00.025 | INFO     | trainers.base_trainer:train_epochs:256 - [R0] | E7 iter[ 14/ 15] | [Loss] 12.5 | [exp] ./exp/0125/car | [step]   119 | [url] none | [time] 0.4m (~5h) |[best] 0 -100.000x1e-2 \n",
     [(89, 51566519.44, None), (104, "nan", None), (119, 12.5, None)]),
    ("chinese-tutorial", ["Loss", None],
     "训练数据集的长度为：50000\n-------第 1 轮训练开始------\n训练次数：100, Loss：1.9817659854888916\n训练次数：200, Loss：1.9057204723358154\n"
     "整体测试集上的Loss: 262.62046909332275\n整体测试集上的正确率: 0.3889999985694885\n模型已保存\n-------第 2 轮训练开始------\n训练次数：300, Loss：1.2562278509140015\n",
     [(100, 1.9817659854888916, None), (200, 1.9057204723358154, None), (300, 1.2562278509140015, None)]),
    ("leading-number", ["loss", None],
     "step 100000: train loss 2.1, val loss 2.2\n100000 | loss 2.0512 | lr 0.000000e+00 | 2006.12ms | mfu 1.68%\n100010 | loss 2.0400 | lr 0.000000e+00 | 2006.12ms | mfu 1.68%\n100020 | loss nan | lr 0.000000e+00 | 2006.12ms | mfu 1.68%\n",
     [(100000, 2.0512, None), (100010, 2.04, None), (100020, "nan", None)]),
    ("build-nanogpt-log-file", ["train", None],
     "0 val 10.9514\n0 hella 0.2482\n0 train 10.953907\n1 train 10.633583\n2 train 10.267729\n250 val 5.5753\n250 train 5.585694\n",
     [(0, 10.953907, None), (1, 10.633583, None), (2, 10.267729, None), (250, 5.585694, None)]),
    ("llm.c", ["loss", "norm"],
     "step    1/18865 | loss 11.009160 (+nanz)| norm 15.3649 (+nanz)| lr 8.57e-07 | 3056.36 ms | 42.6% bf16 MFU | 171545 tok/s\n"
     "step    2/18865 | loss 10.967420 (+0.00z)| norm 15.2011 (+0.10z)| lr 1.71e-06 | 3001.36 ms | 42.6% bf16 MFU | 171545 tok/s\n"
     "val loss 10.9\nstep    3/18865 | loss 10.899999 (-1.20z)| norm 14.9970 (-0.30z)| lr 2.57e-06 | 3001.36 ms | 42.6% bf16 MFU | 171545 tok/s\n",
     [(1, 11.00916, 15.3649), (2, 10.96742, 15.2011), (3, 10.899999, 14.997)]),
    ("maxtext", ["loss", None],
     "completed step: 15107, seconds: 2.167, TFLOP/s/device: 36.722, Tokens/s/device: 1036.1, total_weights: 65536, loss: 2.191\n"
     "completed step: 15108, seconds: 2.164, TFLOP/s/device: 36.771, Tokens/s/device: 1036.2, total_weights: 65536, loss: 2.173\n"
     "eval metrics after step: 15108, loss=2.300, total_weights=131072.0\n"
     "completed step: 15109, seconds: 2.166, TFLOP/s/device: 36.739, Tokens/s/device: 1036.3, total_weights: 65536, loss: 2.180\n",
     [(15107, 2.191, None), (15108, 2.173, None), (15109, 2.18, None)]),
    ("t5x-clu", ["loss", None],
     "I0512 10:10:10.123456 139 logging_writer.py:48] [100] accuracy=0.1, learning_rate=0.01, loss=6.3214, steps_per_second=1.2\n"
     "I0512 10:12:10.123456 139 logging_writer.py:48] [200] accuracy=0.2, learning_rate=0.01, loss=5.9011, steps_per_second=1.2\n"
     "I0512 10:14:10.123456 139 logging_writer.py:48] [300] accuracy=0.2, learning_rate=0.01, loss=5.5120, steps_per_second=1.2\n",
     [(100, 6.3214, None), (200, 5.9011, None), (300, 5.512, None)]),
    ("easylm-dict-arrays", ["loss", "gradient_norm"],
     "{'step': 10, 'loss': Array(6.3214, dtype=float32), 'accuracy': Array(0.01, dtype=float32), 'gradient_norm': Array(1.25, dtype=float32), 'param_norm': Array(100.2, dtype=float32)}\n"
     "{'step': 20, 'loss': Array(nan, dtype=float32), 'accuracy': Array(0.02, dtype=float32), 'gradient_norm': Array(inf, dtype=float32), 'param_norm': Array(100.3, dtype=float32)}\n",
     [(10, 6.3214, 1.25), (20, "nan", "inf")]),
    ("numpy-wrapped", ["loss", "grad_norm"],
     "step 1: {'loss': np.float64(10.2512), 'grad_norm': np.float32(3.5), 'lr': 1e-05}\nstep 2: {'loss': np.float64(10.1), 'grad_norm': np.float32(3.25), 'lr': 1e-05}\n",
     [(1, 10.2512, 3.5), (2, 10.1, 3.25)]),
    ("paddle-tensor", ["loss", None],
     "epoch: 0, step: 1, loss: Tensor(shape=[1], dtype=float32, place=Place(gpu:0), stop_gradient=False, [9.8765]), lr: 1e-4\n"
     "epoch: 0, step: 2, loss: Tensor(shape=[1], dtype=float32, place=Place(gpu:0), stop_gradient=False, [9.7]), lr: 1e-4\n",
     [(1, 9.8765, None), (2, 9.7, None)]),
    ("mindspore-loss-monitor", ["loss", None],
     "epoch: 1 step: 100, loss is 2.3010\nepoch: 1 step: 200, loss is 2.2514\nTrain epoch time: 5000.0 ms, per step time: 25.0 ms\nepoch: 2 step: 100, loss is 1.9010\n",
     [(100, 2.301, None), (200, 2.2514, None), (300, 1.901, None)]),
    ("mindspore-tensor-value", ["loss", None],
     "step: 1, loss: Tensor(shape=[], dtype=Float32, value= 9.87), overflow: False\nstep: 2, loss: Tensor(shape=[], dtype=Float32, value= 9.51), overflow: False\n",
     [(1, 9.87, None), (2, 9.51, None)]),
    ("mindformers-new", ["loss", "global_norm"],
     "2025-03-01 10:00:01,100 - mindformers./output/log[mindformers/core/callback/callback.py:550] - INFO - { Epoch:[  1/  1], step:[    1/ 1000], loss: 11.921, per_step_time: 36000ms, lr: 0.0, overflow cond: False, loss_scale: 1.0, global_norm: [15.3215], train_throughput_per_npu: 10.1T\n"
     "2025-03-01 10:00:01,101 - mindformers./output/log[mindformers/core/callback/callback.py:560] - INFO -    0.1% |                                        | 0.02712 samples/s/p  10:00:01 }\n"
     "2025-03-01 10:00:03,100 - mindformers./output/log[mindformers/core/callback/callback.py:550] - INFO - { Epoch:[  1/  1], step:[    2/ 1000], loss: 11.911, per_step_time: 2000ms, lr: 1e-06, overflow cond: False, loss_scale: 1.0, global_norm: [15.1], train_throughput_per_npu: 180.1T\n",
     [(1, 11.921, 15.3215), (2, 11.911, 15.1)]),
    ("mindyolo", ["loss", None],
     "2024-12-25 09:58:34,125 [WARNING] overflow, still update, loss scale adjust to 1024.0\n"
     "2024-12-25 09:58:42,787 [INFO] Epoch 1/200, Step 100/3995, imgsize (640, 640), loss: 11.6707, lbox: 3.6262, lcls: 5.5689, cur_lr: 0.09924906492233276\n"
     "2024-12-25 09:58:42,800 [INFO] Epoch 1/200, Step 100/3995, step time: 5736.71 ms\n"
     "2024-12-25 09:59:48,236 [INFO] Epoch 1/200, Step 200/3995, imgsize (640, 640), loss: 8712.5938, lbox: 2.9380, lcls: 3.8950, cur_lr: 0.09849812090396881\n",
     [(100, 11.6707, None), (200, 8712.5938, None)]),
    ("paddlenlp-trainer", ["loss", None],
     "[2024-05-05 11:59:40,221] [    INFO] - loss: 10.90271378, learning_rate: 1e-06, global_step: 1, current_memory_allocated: 20.1, interval_runtime: 12.0811, interval_samples_per_second: 1.3244, interval_steps_per_second: 0.0828, ppl: 54321.1, progress_or_epoch: 0.0001\n"
     "[2024-05-05 11:59:50,221] [    INFO] - ***** Running Evaluation *****\n"
     "[2024-05-05 11:59:55,221] [    INFO] - eval_loss: 10.8, eval_ppl: 50000, progress_or_epoch: 0.0001\n"
     "[2024-05-05 11:59:59,221] [    INFO] - loss: 10.85, learning_rate: 2e-06, global_step: 2, current_memory_allocated: 20.1, interval_runtime: 2.0811, interval_samples_per_second: 7.3244, interval_steps_per_second: 0.4828, ppl: 51345.2, progress_or_epoch: 0.0002\n",
     [(1, 10.90271378, None), (2, 10.85, None)]),
    ("paddlenlp-old", ["loss", None],
     "[2022-03-25 16:41:50,060] [    INFO] - global step 10, epoch: 0, batch: 9, loss: 3.21000, accu: 0.50000, speed: 2.31 step/s\n"
     "[2022-03-25 16:41:52,060] [    INFO] - global step 20, epoch: 0, batch: 19, loss: 3.10200, accu: 0.51000, speed: 2.31 step/s\n"
     "[2022-03-25 16:41:53,060] [    INFO] - eval loss: 3.05000, accu: 0.6\n",
     [(10, 3.21, None), (20, 3.102, None)]),
    ("paddlespeech-ranks", ["train_loss", None],
     "[INFO 2021/06/19 16:01:34 model.py:61] Train: Rank: 1, epoch: 1, step: 5310, batch : 1559/1876, lr: 0.00000000, data time: 0.000s, train time: 3.019s, batch size: 64, train_loss: 16.130918\n"
     "[INFO 2021/06/19 16:01:34 model.py:61] Train: Rank: 0, epoch: 1, step: 5310, batch : 1559/1876, lr: 0.00000000, data time: 0.000s, train time: 3.019s, batch size: 64, train_loss: 16.030918\n"
     "[INFO 2021/06/19 16:01:37 model.py:61] Train: Rank: 0, epoch: 1, step: 5311, batch : 1560/1876, lr: 0.00000000, data time: 0.000s, train time: 2.954s, batch size: 64, train_loss: 15.383665\n"
     "[INFO 2021/06/19 16:01:37 model.py:61] Train: Rank: 1, epoch: 1, step: 5311, batch : 1560/1876, lr: 0.00000000, data time: 0.000s, train time: 2.954s, batch size: 64, train_loss: 15.883665\n",
     [(5310, 16.030918, None), (5311, 15.383665, None)]),
    ("tensorflow-estimator", ["loss", None],
     "INFO:tensorflow:global_step/sec: 0.0339311\nINFO:tensorflow:loss = 79.3501, step = 0\nINFO:tensorflow:Saving checkpoints for 0 into ./model.ckpt.\n"
     "INFO:tensorflow:loss = 72.8609, step = 100 (57.126 sec)\nINFO:tensorflow:loss = 67.3308, step = 200 (57.126 sec)\nINFO:tensorflow:Loss for final step: 66.1.\n",
     [(0, 79.3501, None), (100, 72.8609, None), (200, 67.3308, None)]),
    ("tf-slim-duplicated", ["loss", None],
     "INFO:tensorflow:global step 1: loss = 79.3501 (57.126 sec/step)\nINFO:tensorflow:global step 1: loss = 79.3501 (57.126 sec/step)\n"
     "INFO:tensorflow:Recording summary at step 1.\nINFO:tensorflow:global step 2: loss = 72.8609 (17.053 sec/step)\nINFO:tensorflow:global step 2: loss = 72.8609 (17.053 sec/step)\n",
     [(1, 79.3501, None), (2, 72.8609, None)]),
    ("time-llm", ["loss", None],
     "99it [01:10,  1.45it/s]\titers: 100, epoch: 1 | loss: 0.7312345\n\tspeed: 0.6871s/iter; left time: 9247.2732s\n"
     "199it [02:20,  1.45it/s]\titers: 200, epoch: 1 | loss: 0.6312345\n\tspeed: 0.6871s/iter; left time: 9240.2732s\nVali Loss: 0.5\n",
     [(100, 0.7312345, None), (200, 0.6312345, None)]),
    ("keras-bars", ["loss", None],
     "Epoch 1/2\n\r  1/100 [..............................] - ETA: 30s - loss: 2.3012 - accuracy: 0.1\r 50/100 [=============>................] - ETA: 10s - loss: 1.9012 - accuracy: 0.2"
     "\r100/100 [==============================] - 31s 310ms/step - loss: 1.5012 - accuracy: 0.4 - val_loss: 1.4 - val_accuracy: 0.5\n"
     "Epoch 2/2\n\r  1/100 [..............................] - ETA: 30s - loss: 1.4012 - accuracy: 0.5\r100/100 [==============================] - 31s 310ms/step - loss: 1.1012 - accuracy: 0.6 - val_loss: 1.0\n",
     [(1, 2.3012, None), (50, 1.9012, None), (100, 1.5012, None), (101, 1.4012, None), (200, 1.1012, None)]),
    ("torchvision-imagenet", ["Loss", None],
     "Epoch: [0][  10/5005]\tTime  0.213 ( 0.913)\tData  0.000 ( 0.312)\tLoss 6.9012e+00 (6.9512e+00)\tAcc@1   0.00 (  0.10)\n"
     "Epoch: [0][  20/5005]\tTime  0.213 ( 0.613)\tData  0.000 ( 0.212)\tLoss 6.8512e+00 (6.9212e+00)\tAcc@1   0.00 (  0.12)\n"
     "Test: [ 0/196]\tTime  0.8 ( 0.8)\tLoss 5.9e+00 (5.9e+00)\tAcc@1   1.0\n",
     [(10, 6.9012, None), (20, 6.8512, None)]),
    ("timm", ["Loss", None],
     "Train: 0 [   0/1251 (  0%)]  Loss: 6.943 (6.94)  Time: 3.2s,   80.1/s  (3.2s,   80.1/s)  LR: 1.000e-06  Data: 1.9 (1.9)\n"
     "Train: 0 [  50/1251 (  4%)]  Loss: 6.921 (6.93)  Time: 0.4s,  640.1/s  (0.5s,  580.1/s)  LR: 1.000e-06  Data: 0.0 (0.1)\n"
     "Test: [   0/48]  Time: 2.5 (2.5)  Loss:  6.8 (6.8)  Acc@1: 0.1 (0.1)\n"
     "Train: 0 [ 100/1251 (  8%)]  Loss: 6.900 (6.92)  Time: 0.4s,  640.1/s  (0.5s,  590.1/s)  LR: 1.000e-06  Data: 0.0 (0.1)\n",
     [(0, 6.943, None), (50, 6.921, None), (100, 6.9, None)]),
    ("mnist-example", ["Loss", None],
     "Train Epoch: 1 [0/60000 (0%)]\tLoss: 2.305400\nTrain Epoch: 1 [640/60000 (1%)]\tLoss: 1.359776\nTrain Epoch: 1 [1280/60000 (2%)]\tLoss: 0.830664\n\nTest set: Average loss: 0.0466, Accuracy: 9850/10000 (98%)\n",
     [(0, 2.3054, None), (640, 1.359776, None), (1280, 0.830664, None)]),
    ("yolo-table", ["box_loss", None],
     "      Epoch    GPU_mem   box_loss   cls_loss   dfl_loss  Instances       Size\n"
     "       1/55      9.95G     1.2338       5.07      2.977         12        640: 100%|██████████| 787/787 [09:07<00:00,  1.44it/s]\n"
     "                 Class     Images  Instances      Box(P          R      mAP50  mAP50-95): 100%|██████████| 66/66 [00:34<00:00,  1.90it/s]\n"
     "                   all       1049       1186      0.914      0.898      0.938      0.559\n\n"
     "      Epoch    GPU_mem   box_loss   cls_loss   dfl_loss  Instances       Size\n"
     "       2/55      9.87G    -0.2286      4.971      2.967         11        640: 100%|██████████| 787/787 [09:06<00:00,  1.44it/s]\n",
     [(1, 1.2338, None), (2, -0.2286, None)]),
    ("fastai-table", ["train_loss", None],
     "epoch     train_loss  valid_loss  accuracy  time    \n0         2.301200    2.100100    0.210000  00:31     \n1         1.901200    1.800100    0.310000  00:30     \n",
     [(0, 2.3012, None), (1, 1.9012, None)]),
    ("lightning-csv", ["train_loss", "grad_norm"],
     "epoch,grad_norm,step,train_loss,val_loss\n0,1.25,9,2.5012,\n0,,9,,2.6\n0,1.125,19,2.4012,\n1,nan,29,2.3012,\n",
     [(9, 2.5012, 1.25), (19, 2.4012, 1.125), (29, 2.3012, "nan")]),
    ("markdown-table", ["loss", "grad norm"],
     "| step | loss | grad norm |\n|---|---|---|\n| 1 | 2.5 | 1.25 |\n| 2 | 2.4 | 1.20 |\n",
     [(1, 2.5, 1.25), (2, 2.4, 1.2)]),
    ("hf-notebook-table", ["Training Loss", None],
     "Step\tTraining Loss\tValidation Loss\n500\t1.7319\t1.6\n1000\t1.5129\t1.5\n",
     [(500, 1.7319, None), (1000, 1.5129, None)]),
    ("sb3-table", ["loss", None],
     "----------------------------------\n| rollout/            |          |\n|    ep_rew_mean      | 20.1     |\n| time/               |          |\n|    iterations       | 2        |\n|    total_timesteps  | 4096     |\n| train/              |          |\n|    entropy_loss     | -0.68    |\n|    loss             | 5.31     |\n----------------------------------\n"
     "----------------------------------\n| time/               |          |\n|    iterations       | 3        |\n|    total_timesteps  | 6144     |\n| train/              |          |\n|    entropy_loss     | -0.66    |\n|    loss             | 4.92     |\n----------------------------------\n",
     [(2, 5.31, None), (3, 4.92, None)]),
    ("json-lines", ["train/loss", "train/grad_norm"],
     '{"ts": "2025-01-01T00:00:00Z", "step": 1, "train/loss": 2.5, "train/grad_norm": 1.5, "eval/loss": null}\n{"ts": "2025-01-01T00:00:01Z", "step": 2, "eval/loss": 2.6}\n'
     '{"ts": "2025-01-01T00:00:02Z", "step": 3, "train/loss": 2.25, "train/grad_norm": Infinity}\n',
     [(1, 2.5, 1.5), (3, 2.25, "inf")]),
    ("logfmt", ["loss", "grad_norm"],
     'ts=2025-01-01T00:00:00Z level=info msg="train step" step=10 loss=2.3125 grad_norm=0.75 loss_scale=65536 lr=1e-5\n'
     'ts=2025-01-01T00:00:02Z level=info msg="eval step" split=eval step=10 loss=2.5\n'
     'ts=2025-01-01T00:00:05Z level=info msg="train step" step=20 loss=2.25 grad_norm=0.5 loss_scale=65536 lr=1e-5\n',
     [(10, 2.3125, 0.75), (20, 2.25, 0.5)]),
    ("chinese-keys", ["损失", "梯度范数"],
     "2025-01-01 10:00:00 第 10 步, 学习率: 1e-5, 损失: 2.3125, 梯度范数: 0.75, 损失缩放: 65536\n2025-01-01 10:01:00 第 20 步, 学习率: 1e-5, 损失: 2.25, 梯度范数: 0.5, 损失缩放: 65536\n[验证] 第 20 步, 损失: 2.5\n",
     [(10, 2.3125, 0.75), (20, 2.25, 0.5)]),
    ("openrlhf-bar", ["policy_loss", None],
     "Episode [1/20]:   0%|          | 0/8 [00:00<?, ?it/s]\n"
     "Train epoch [1/1]:   0%|          | 0/4 [00:00<?, ?it/s]\rTrain epoch [1/1]:  25%|██▌       | 1/4 [00:10<00:30, 10.0s/it, policy_loss=0.0125, actor_lr=1e-7, kl=0.01]\rTrain epoch [1/1]:  50%|█████     | 2/4 [00:20<00:20, 10.0s/it, policy_loss=-0.0031, actor_lr=1e-7, kl=0.012]\n",
     [(1, 0.0125, None), (2, -0.0031, None)]),
    ("diffusers-bar", ["step_loss", None],
     "Steps:   0%|          | 0/1000 [00:00<?, ?it/s]\rSteps:   0%|          | 1/1000 [00:02<33:10,  1.99s/it]\rSteps:   0%|          | 1/1000 [00:02<33:10,  1.99s/it, lr=5e-6, step_loss=0.112]"
     "\rSteps:   0%|          | 2/1000 [00:03<30:10,  1.81s/it, lr=5e-6, step_loss=0.112]\rSteps:   0%|          | 2/1000 [00:03<30:10,  1.81s/it, lr=5e-6, step_loss=0.0931]"
     "\rSteps:   0%|          | 3/1000 [00:05<30:10,  1.81s/it, lr=5e-6, step_loss=0.0931]\rSteps:   0%|          | 3/1000 [00:05<30:10,  1.81s/it, lr=5e-6, step_loss=0.287]\n",
     [(1, 0.112, None), (2, 0.0931, None), (3, 0.287, None)]),
    ("hf-lagging-bar", ["loss", "grad_norm"],
     "  0%|          | 0/300 [00:00<?, ?it/s]\r  3%|▎         | 8/300 [00:00<00:03, 80.00it/s]\r                                                 \r{'loss': 1.7319, 'grad_norm': 0.5479, 'learning_rate': 2.7e-05, 'epoch': 0.1}\n"
     "\r  3%|▎         | 10/300 [00:00<00:03, 80.00it/s]\r  6%|▌         | 17/300 [00:00<00:03, 80.00it/s]\r                                                 \r{'loss': 1.7129, 'grad_norm': 0.7897, 'learning_rate': 2.5e-05, 'epoch': 1.0}\n"
     "\r  7%|▋         | 20/300 [00:00<00:03, 80.00it/s]\n  0%|          | 0/5 [00:00<?, ?it/s]\r100%|██████████| 5/5 [00:00<00:00, 30.0it/s]\n                                                 \r{'eval_loss': 1.6, 'epoch': 1.0}\n"
     "\r 10%|█         | 30/300 [00:01<00:03, 80.00it/s]\r                                                 \r{'loss': 1.5, 'grad_norm': 0.5, 'learning_rate': 2.5e-05, 'epoch': 1.5}\n\r 10%|█         | 30/300 [00:01<00:03, 80.00it/s]\n"
     "{'train_runtime': 10.1, 'train_samples_per_second': 100.0, 'train_loss': 1.6, 'epoch': 1.5}\n",
     [(10, 1.7319, 0.5479), (20, 1.7129, 0.7897), (30, 1.5, 0.5)]),
    ("hf-no-bar", ["loss", "grad_norm"],
     "{'loss': 2.41, 'grad_norm': 1.5, 'learning_rate': 1.9e-04, 'epoch': 0.3}\n{'loss': 1.62, 'grad_norm': 1.25, 'learning_rate': 1.6e-04, 'epoch': 0.9}\n{'eval_loss': 0.62, 'epoch': 1.0}\n{'loss': 1.04, 'grad_norm': 1.0, 'learning_rate': 1.1e-04, 'epoch': 1.6}\n{'train_runtime': 10.1, 'train_loss': 1.6, 'epoch': 1.6}\n",
     [(1, 2.41, 1.5), (2, 1.62, 1.25), (3, 1.04, 1.0)]),
    ("llamafactory-v1-print", ["Loss", "Grad Norm"],
     "Epoch 0, Step 1, Loss: 2.4100, Grad Norm: 1.5000\nEpoch 0, Step 2, Loss: 2.3100, Grad Norm: 1.4000\n",
     [(1, 2.41, 1.5), (2, 2.31, 1.4)]),
    ("nemo-old-bar", ["reduced_train_loss", None],
     "Epoch 0: :   0%|          | 1/1000 [00:10<2:46:00, v_num=, reduced_train_loss=10.90, global_step=0.000, consumed_samples=32.00, train_step_timing in s=8.120]\r"
     "Epoch 0: :   0%|          | 2/1000 [00:18<2:36:00, v_num=, reduced_train_loss=10.80, global_step=1.000, consumed_samples=64.00, train_step_timing in s=7.900]\r"
     "Epoch 0: :   0%|          | 3/1000 [00:26<2:33:00, v_num=, reduced_train_loss=10.70, global_step=2.000, consumed_samples=96.00, train_step_timing in s=7.900, val_loss=10.80]\n",
     [(0, 10.9, None), (1, 10.8, None), (2, 10.7, None)]),
    ("torchtitan-ansi", ["loss", "grad_norm"],
     f"[rank0]:[titan] 2025-05-18 16:04:17,338 - root - INFO - {ESC}[31mstep:  1  {ESC}[32mloss:  8.12040  {ESC}[38;2;180;60;0mgrad_norm:  1.3750  {ESC}[33mmemory:  9.46GiB(64.99%)  {ESC}[34mtps: 10,050  {ESC}[36mtflops: 0.52{ESC}[39m\n"
     f"[rank0]:[titan] 2025-05-18 16:04:19,338 - root - INFO - {ESC}[31mstep: 10  {ESC}[32mloss:  7.12040  {ESC}[38;2;180;60;0mgrad_norm:  1.2500  {ESC}[33mmemory:  9.46GiB(64.99%)  {ESC}[34mtps: 10,050  {ESC}[36mtflops: 0.52{ESC}[39m\n",
     [(1, 8.1204, 1.375), (10, 7.1204, 1.25)]),
    ("restart-in-file", ["lm loss", "grad norm"],
     " iteration       10/     100 | lm loss: 9.100000E+00 | loss scale: 1.0 | grad norm: 1.100 |\n iteration       20/     100 | lm loss: 8.200000E+00 | loss scale: 1.0 | grad norm: 1.200 |\n"
     " iteration       30/     100 | lm loss: 7.300000E+00 | loss scale: 1.0 | grad norm: 1.300 |\nTraceback (most recent call last):\nRuntimeError: HCCL timeout\n"
     " loading checkpoint from ./ckpt at iteration 20\ntraining ...\n"
     " iteration       30/     100 | lm loss: 7.310000E+00 | loss scale: 1.0 | grad norm: 1.310 |\n iteration       40/     100 | lm loss: 6.400000E+00 | loss scale: 1.0 | grad norm: 1.400 |\n",
     [(10, 9.1, 1.1), (20, 8.2, 1.2), (30, 7.31, 1.31), (40, 6.4, 1.4)]),
    ("restart-from-scratch", ["loss", None],
     "step 1 loss 3.0\nstep 2 loss 2.9\nstep 3 loss 2.8\nstep 4 loss 2.7\nstep 1 loss 3.1\nstep 2 loss 3.05\n",
     [(1, 3.1, None), (2, 3.05, None)]),
    ("micro-batches", ["loss", "grad_norm"],
     "step 1 micro 1/2 loss: 2.6\nstep 1 micro 2/2 loss: 2.4\nstep 1 loss: 2.5 grad_norm: 1.0\nstep 2 micro 1/2 loss: 2.3\nstep 2 micro 2/2 loss: 2.1\nstep 2 loss: 2.2 grad_norm: 0.9\n",
     [(1, 2.5, 1.0), (2, 2.2, 0.9)]),
    ("thousands", ["loss", "grad_norm"],
     "Step 1,000 | loss: 1,234.5678 | grad_norm: 12,345.6 | tps: 10,050\nStep 1,010 | loss: 987.5 | grad_norm: 1,000 | tps: 10,050\n",
     [(1000, 1234.5678, 12345.6), (1010, 987.5, 1000.0)]),
    ("skipped-values", ["loss", "grad_norm"],
     "step=1 loss=None grad_norm=N/A skipped=1 lr=0.1\nstep=2 loss=2.5 grad_norm=- lr=0.1\nstep=3 loss=skipped grad_norm=0.5 lr=0.1\nstep=4 loss=2.25 grad_norm=0.25 lr=0.1\n",
     [(2, 2.5, None), (3, None, 0.5), (4, 2.25, 0.25)]),
    ("config-dump", ["loss", "grad_norm"],
     "config:\n  loss: 1.0\n  max_grad_norm: 1.0\n  grad_norm: 1.0\n  train_steps: 1000\n  steps: 500\n{\n  \"loss\": 2,\n  \"grad_norm\": 1.0,\n  \"max_steps\": 100\n}\n"
     "[step 1] loss=2.5 grad_norm=0.75\n[step 2] loss=2.4 grad_norm=0.7\n[step 3] loss=2.3 grad_norm=0.65\n",
     [(1, 2.5, 0.75), (2, 2.4, 0.7), (3, 2.3, 0.65)]),
    ("step-behind", ["loss", "grad_norm"],
     "loss: 2.5\ngrad_norm: 0.75\nfinished step 1\nloss: 2.4\ngrad_norm: 0.7\nfinished step 2\nloss: 2.3\ngrad_norm: 0.65\nfinished step 3\n",
     [(1, 2.5, 0.75), (2, 2.4, 0.7), (3, 2.3, 0.65)]),
    ("step-ahead-block", ["loss", "grad_norm"],
     "=== step 1 ===\nloss: 2.5\ngrad_norm: 0.75\n=== step 2 ===\nloss: 2.4\ngrad_norm: 0.7\n",
     [(1, 2.5, 0.75), (2, 2.4, 0.7)]),
    ("pprint-dict", ["loss", "grad_norm"],
     "{'epoch': 1,\n 'grad_norm': 1.5,\n 'loss': 2.5,\n 'step': 1}\n{'epoch': 1,\n 'grad_norm': 1.25,\n 'loss': 2.25,\n 'step': 2}\n",
     [(1, 2.5, 1.5), (2, 2.25, 1.25)]),
    ("compact-trainer-state", ["loss", "grad_norm"],
     '{"global_step": 30, "log_history": [{"epoch": 0.1, "grad_norm": 1.5, "learning_rate": 1e-5, "loss": 2.5, "step": 10}, {"epoch": 0.2, "grad_norm": 1.25, "learning_rate": 1e-5, "loss": 2.25, "step": 20}, {"epoch": 0.2, "eval_loss": 2.3, "step": 20}, {"epoch": 0.3, "grad_norm": NaN, "learning_rate": 1e-5, "loss": 2.0, "step": 30}], "max_steps": 30}\n',
     [(10, 2.5, 1.5), (20, 2.25, 1.25), (30, 2.0, "nan")]),
    ("wrapped-key", ["lm loss", "grad norm"],
     " iteration        1/    1000 | consumed samples:           32 | elapsed time per iteration (ms): 3103.7 | lm lo\nss: 1.192044E+01 | loss scale: 1.0 | grad norm: 4.107 | number of skipped iterations:   0 |\n"
     " iteration        2/    1000 | consumed samples:           64 | elapsed time per iteration (ms): 3107.4 | lm lo\nss: 1.191875E+01 | loss scale: 1.0 | grad norm: 4.233 | number of skipped iterations:   0 |\n"
     " iteration        3/    1000 | consumed samples:           96 | elapsed time per iteration (ms): 3111.1 | lm lo\nss: 1.013320E+01 | loss scale: 1.0 | grad norm: 3.861 | number of skipped iterations:   0 |\n",
     [(1, 11.92044, 4.107), (2, 11.91875, 4.233), (3, 10.1332, 3.861)]),
    ("wrapped-number", ["lm loss", "grad norm"],
     " iteration        1/    1000 | consumed samples:           32 | elapsed time per iteration (ms): 3103.7 | lm loss: 1.19\n2044E+01 | loss scale: 1.0 | grad norm: 4.107 | number of skipped iterations:   0 |\n"
     " iteration        2/    1000 | consumed samples:           64 | elapsed time per iteration (ms): 3107.4 | lm loss: 1.19\n1875E+01 | loss scale: 1.0 | grad norm: 4.233 | number of skipped iterations:   0 |\n",
     [(1, 11.92044, 4.107), (2, 11.91875, 4.233)]),
    ("srun-labels", ["lm loss", "grad norm"],
     "0:  iteration        1/    1000 | lm loss: 1.192044E+01 | grad norm: 4.107 |\n1:  iteration        1/    1000 | lm loss: 1.200000E+01 | grad norm: 4.207 |\n"
     "1:  iteration        2/    1000 | lm loss: 1.150000E+01 | grad norm: 4.300 |\n0:  iteration        2/    1000 | lm loss: 1.140000E+01 | grad norm: 4.200 |\n",
     [(1, 11.92044, 4.107), (2, 11.4, 4.2)]),
    ("megatron-validation", ["lm loss", "grad norm"],
     " iteration      100/    1000 | lm loss: 9.100000E+00 | loss scale: 1.0 | grad norm: 1.100 |\n"
     "------------------------------------------------------------------\n validation loss at iteration 100 | lm loss value: 9.050000E+00 | lm loss PPL: 8.517E+03 | \n------------------------------------------------------------------\n"
     " iteration      200/    1000 | lm loss: 8.100000E+00 | loss scale: 1.0 | grad norm: 0.900 |\n",
     [(100, 9.1, 1.1), (200, 8.1, 0.9)]),
    ("mindspeed-mm", ["loss", "grad norm"],
     " [2025-06-01 11:21:09] iteration        1/    5000 | consumed samples:           16 | elapsed time per iteration (ms): 41000.0 | learning rate: 1.000000E-05 | global batch size:    16 | loss: 1.210035E-01 | loss scale: 1.0 | grad norm: 0.310 | number of skipped iterations:   0 | number of nan iterations:   0 |\n"
     " [2025-06-01 11:21:18] iteration        2/    5000 | consumed samples:           32 | elapsed time per iteration (ms): 20500.0 | learning rate: 1.000000E-05 | global batch size:    16 | loss: 1.190035E-01 | loss scale: 1.0 | grad norm: 0.295 | number of skipped iterations:   0 | number of nan iterations:   0 |\n",
     [(1, 0.1210035, 0.31), (2, 0.1190035, 0.295)]),
    ("mlperf", ["train_loss", None],
     ':::MLLOG {"namespace": "", "time_ms": 1, "event_type": "POINT_IN_TIME", "key": "train_loss", "value": 2.3125, "metadata": {"samples_count": 1024, "step": 3}}\n'
     ':::MLLOG {"namespace": "", "time_ms": 2, "event_type": "POINT_IN_TIME", "key": "train_loss", "value": 2.25, "metadata": {"samples_count": 2048, "step": 6}}\n',
     [(3, 2.3125, None), (6, 2.25, None)]),
    ("wandb-summary", ["train/loss", None],
     "step 1: train/loss: 2.5\nstep 2: train/loss: 2.4\nwandb: Run history:\nwandb:   train/loss █▁\nwandb: Run summary:\nwandb:   train/loss 2.4\nwandb:   train/step 2\n",
     [(1, 2.5, None), (2, 2.4, None)]),
    ("trl-ppo", ["loss/policy_avg", None],
     "{'eps': 1, 'objective/kl': 10.5, 'policy/approxkl_avg': 0.0023, 'loss/policy_avg': 0.00090751051902771, 'loss/value_avg': 0.15319222211837769, 'val/clipfrac_avg': 0.0, 'val/ratio': 0.968, 'lr': 2.0e-06, 'episode': 816, 'epoch': 0.91}\n"
     "{'eps': 1, 'objective/kl': 11.2, 'policy/approxkl_avg': 0.0024, 'loss/policy_avg': -0.0024606515653431416, 'loss/value_avg': 0.08711372315883636, 'val/clipfrac_avg': 0.0, 'val/ratio': 0.965, 'lr': 1.9e-06, 'episode': 832, 'epoch': 0.92}\n",
     [(816, 0.00090751051902771, None), (832, -0.0024606515653431416, None)]),
    ("axolotl-rich-log", ["loss", "grad_norm"],
     "[2025-01-01 10:00:00,000] [INFO] [axolotl.callbacks.on_step_end:125] [PID:72] [RANK:0] GPU memory usage while training: 7.1GB (+3.2GB cache)\n"
     "  1%|          | 1/100 [00:10<16:40, 10.1s/it]                                              {'loss': 1.5512, 'grad_norm': 0.9012, 'learning_rate': 2e-05, 'epoch': 0.01}\n"
     "  1%|          | 1/100 [00:10<16:40, 10.1s/it]  2%|▏         | 2/100 [00:20<16:30, 10.1s/it]                                              {'loss': 1.4512, 'grad_norm': 0.8012, 'learning_rate': 2e-05, 'epoch': 0.02}\n",
     [(1, 1.5512, 0.9012), (2, 1.4512, 0.8012)]),
    ("colossalai", ["Loss", "Grad Norm"],
     "[extension] Compiling the JIT cpu_adam_x86 kernel during runtime now\nEpoch 0:   0%|          | 1/5000 [00:05<7:00:00,  5.04s/it, Loss=10.9012, Grad Norm=1.25]\nEpoch 0:   0%|          | 2/5000 [00:09<6:30:00,  4.70s/it, Loss=10.8012, Grad Norm=1.20]\n",
     [(1, 10.9012, 1.25), (2, 10.8012, 1.2)]),
    ("loss-at-step", ["Training loss", None],
     "Training loss (for one batch) at step 0: 131.3794\nTraining loss at step 200: 1.2005\nTraining loss at step 400: 0.9005\n",
     [(200, 1.2005, None), (400, 0.9005, None)]),
    ("lightning-rich", ["train_loss", None],
     "Epoch 0/9  ━━━━━━━━━━━━━━━━━━━━━━ 10/100 0:00:05 • 0:00:45 2.02it/s v_num: 3 train_loss: 2.301\nEpoch 0/9  ━━━━━━━━━━━━━━━━━━━━━━ 20/100 0:00:10 • 0:00:40 2.02it/s v_num: 3 train_loss: 2.201\n",
     [(10, 2.301, None), (20, 2.201, None)]),
    ("ray-workers", ["loss", "grad_norm"],
     "(RayTrainWorker pid=3001, ip=10.0.0.2) step 1 loss 2.51 grad_norm 1.0\n(RayTrainWorker pid=3000, ip=10.0.0.1) step 1 loss 2.51 grad_norm 1.0 [repeated 3x across cluster]\n(RayTrainWorker pid=3000, ip=10.0.0.1) step 2 loss 2.41 grad_norm 0.9\n",
     [(1, 2.51, 1.0), (2, 2.41, 0.9)]),
    ("regex-keyword", [r"/CE\((\S+)\)/", r"/\|g\|=([-\d.e+]+)/"],
     "it=1 CE(2.5) KL(0.1) |g|=1.5e+00\nit=2 CE(2.25) KL(0.1) |g|=1.25e+00\n",
     [(1, 2.5, 1.5), (2, 2.25, 1.25)]),
    ("variant-spelling", ["lm loss", "grad norm"],
     "step 1 | LM_Loss: 2.5 | Grad-Norm: 1.5 | loss_scale: 1.0\nstep 2 | LM_Loss: 2.25 | Grad-Norm: 1.25 | loss_scale: 1.0\n",
     [(1, 2.5, 1.5), (2, 2.25, 1.25)]),
    ("rotated-ranks-no-tag", ["loss", None],
     "step 1 loss 2.5\nstep 1 loss 2.6\nstep 2 loss 2.4\nstep 1 loss 2.7\nstep 2 loss 2.45\nstep 3 loss 2.3\n",
     [(1, 2.5, None), (2, 2.4, None), (3, 2.3, None)]),
    ("modded-nanogpt", ["train_loss", None],
     "step:0/1390 val_loss:10.8258 train_time:0ms step_avg:nanms\nstep:1/1390 train_loss:10.8258 train_time:250ms step_avg:250.1ms\nstep:2/1390 train_loss:10.7001 train_time:400ms step_avg:200.1ms\n",
     [(1, 10.8258, None), (2, 10.7001, None)]),
    ("ppocr", ["loss", None],
     "> [2023/04/16 06:01:31] ppocr INFO: epoch: [1/5], global_step: 100, lr: 0.000000, acc: 0.000000, norm_edit_dis: 0.034689, CTCLoss: 109.157875, SARLoss: 5.947334, loss: 115.099876, avg_reader_cost: 1.29460 s, avg_samples: 8.0, ips: 4.79740 samples/s, eta: 60 days, 7:29:51\n"
     "> [2023/04/16 06:02:31] ppocr INFO: cur metric, acc: 0.1, norm_edit_dis: 0.2, fps: 812.1\n"
     "> [2023/04/16 06:03:10] ppocr INFO: epoch: [2/5], global_step: 200, lr: 0.000000, acc: 0.000000, norm_edit_dis: 0.033790, CTCLoss: 113.308212, SARLoss: 6.039101, loss: 119.360352, avg_reader_cost: 0.63944 s, avg_samples: 8.0, ips: 8.14825 samples/s, eta: 47 days, 21:49:45\n",
     [(100, 115.099876, None), (200, 119.360352, None)]),
    ("open-clip", ["Loss", None],
     " Start epoch 0\n2023-06-29,15:44:40 | INFO | Train Epoch: 0 [    64/109468 (0%)] Loss: 1.0672 (1.067) Data (t): 14.173 Batch (t): 18.240, 1.75441/s LR: 0.000000 Logit Scale: 100.000 - V4\n"
     "2023-06-29,15:45:36 | INFO | Train Epoch: 0 [  6464/109468 (6%)] Loss: 0.97884 (1.023) Data (t): 0.158 Batch (t): 0.559, 36.0876/s LR: 0.000001 Logit Scale: 99.995 - V4\n"
     "2023-06-29,15:46:36 | INFO | Eval Epoch: 1 clip_val_loss: 0.9\n",
     [(64, 1.0672, None), (6464, 0.97884, None)]),
    ("olmo", ["train/CrossEntropyLoss", "optim/total_grad_norm"],
     "    System/Peak GPU Memory (MB)=6,784\n2024-08-06 09:59:26.181 host-160750:0  olmo.train:908  INFO    [step=1/739328,epoch=0]\n    optim/total_grad_norm=231.7\n    train/CrossEntropyLoss=12.18\n    train/Perplexity=195,153\n    throughput/total_tokens=1,048,576\n    System/Peak GPU Memory (MB)=46,911\n"
     "2024-08-06 10:00:05.520 host-160750:0  olmo.train:908  INFO    [step=2/739328,epoch=0]\n    optim/total_grad_norm=0.0002\n    train/CrossEntropyLoss=1.7872662283480167e-06\n    train/Perplexity=1.000\n    throughput/total_tokens=2,097,152\n",
     [(1, 12.18, 231.7), (2, 1.7872662283480167e-06, 0.0002)]),
    ("mlx-lm", ["Train loss", None],
     "[GRAD-DBG] it=9 micro=9/10 loss=3.0505 toks=94 grad_l2=1.328e+01\nIter 10: Train loss 2.786, Learning Rate 1.000e-05, It/sec 17.598, Tokens/sec 1728.137, Trained Tokens 6521, Peak mem 1.437 GB\n"
     "Iter 10: Val loss 2.9, Val took 3.1s\nIter 20: Train loss 2.586, Learning Rate 1.000e-05, It/sec 17.598, Tokens/sec 1728.137, Trained Tokens 13021, Peak mem 1.437 GB\n",
     [(10, 2.786, None), (20, 2.586, None)]),
    ("swin-two-epochs", ["loss", "grad_norm"],
     "[2022-03-14 09:05:16 swin] (main.py 226): INFO Train: [14/300][0/20]\teta 0:10:52 lr 0.000710\ttime 0.6408 (0.6516)\tloss 6.5584 (6.3074)\tgrad_norm 6.5613 (10.6225)\tmem 14764MB\n"
     "[2022-03-14 09:05:23 swin] (main.py 226): INFO Train: [14/300][10/20]\teta 0:10:45 lr 0.000711\ttime 0.6290 (0.6510)\tloss 5.8341 (6.3028)\tgrad_norm 7.8036 (10.4777)\tmem 14764MB\n"
     "[2022-03-14 09:05:24 swin] (main.py 270): INFO Test: [0/98]\tTime 3.1 (3.1)\tLoss 1.2 (1.2)\tAcc@1 70.0 (70.0)\n"
     "[2022-03-14 09:05:29 swin] (main.py 226): INFO Train: [15/300][0/20]\teta 0:10:38 lr 0.000711\ttime 0.6464 (0.6506)\tloss 5.8300 (6.2990)\tgrad_norm 5.5182 (10.3799)\tmem 14764MB\n",
     [(0, 6.5584, 6.5613), (10, 5.8341, 7.8036), (20, 5.83, 5.5182)]),
    ("nnunet-v2", ["train_loss", None],
     "2024-04-26 09:39:10.910043: Epoch 0\n2024-04-26 09:39:10.914042: Current learning rate: 0.01\nusing pin_memory on device 0\n2024-04-26 09:41:39.493872: train_loss 0.7088\n2024-04-26 09:41:39.498914: val_loss 0.4628\n2024-04-26 09:41:39.501914: Pseudo dice [0.0, 0.1]\n2024-04-26 09:41:39.505914: Epoch time: 148.59 s\n2024-04-26 09:41:40.302549:\n"
     "2024-04-26 09:41:40.307418: Epoch 1\n2024-04-26 09:41:40.311464: Current learning rate: 0.00999\n2024-04-26 09:43:54.932336: train_loss -0.4043\n2024-04-26 09:43:54.939337: val_loss 0.3847\n2024-04-26 09:43:54.943336: Pseudo dice [0.0, 0.2]\n",
     [(0, 0.7088, None), (1, -0.4043, None)]),
    ("nnunet-v1", ["train loss", None],
     "2022-02-11 09:32:44.207069: \nepoch:  6\n2022-02-11 09:34:49.625515: train loss : -0.6584\n2022-02-11 09:34:59.688008: validation loss: -0.7226\n2022-02-11 09:35:00.857095: lr: 0.009937\n2022-02-11 09:35:01.343246: This epoch took 137.136132 s\n\n2022-02-11 09:35:01.343388: \nepoch:  7\n2022-02-11 09:37:06.546855: train loss : -0.6505\n2022-02-11 09:37:18.553614: validation loss: -0.6722\n",
     [(6, -0.6584, None), (7, -0.6505, None)]),
    ("litgpt", ["loss train", None],
     "Epoch 34 | iter 3050700 step 610140 | loss train: 2.846, val: 2.861 | iter time: 112.20 ms (step) remaining time: 0:01:54\nEpoch 34 | iter 3050750 step 610150 | loss train: 2.750, val: 2.861 | iter time: 111.35 ms (step) remaining time: 0:01:49\n",
     [(3050700, 2.846, None), (3050750, 2.75, None)]),
    ("dllogger", ["step_loss", None],
     "DLL 2022-04-05 02:22:54.614486 - PARAMETER Config : [\"Namespace(bert_model='x', learning_rate=3e-05)\"] \nDLL 2022-04-05 02:22:54.614486 - Training Epoch: 1 Training Iteration: 2872  step_loss : 0.6953772306442261  learning_rate : 1.5844598709048836e-05 \n"
     "DLL 2022-04-05 02:23:00.608205 - Training Epoch: 1 Training Iteration: 2922  step_loss : 2.592996120452881  learning_rate : 1.5540129095116308e-05 \n",
     [(2872, 0.6953772306442261, None), (2922, 2.592996120452881, None)]),
    ("swift-jsonl", ["loss", "grad_norm"],
     '{"loss": 1e-08, "grad_norm": 0.03865505, "learning_rate": 1e-08, "reward": 0.65625, "epoch": 0.00045568, "global_step/max_steps": "2/4389", "percentage": "0.05%", "elapsed_time": "6m 50s", "remaining_time": "10d 9h 50m 13s"}\n'
     '{"loss": 4e-08, "grad_norm": 0.03032537, "learning_rate": 1e-08, "reward": 0.78125, "epoch": 0.00068353, "global_step/max_steps": "3/4389", "percentage": "0.07%", "elapsed_time": "9m 50s", "remaining_time": "10d 9h 40m 13s"}\n',
     [(2, 1e-08, 0.03865505), (3, 4e-08, 0.03032537)]),
    ("deeprm", ["Loss", None],
     "-----------------\nIteration: \t 0\nNumTrajs: \t 200\nNumTimesteps: \t 32549\nLoss:     \t 0.1269063800573349\nMaxRew: \t -199.90956376956376\nElapsed time\t 106.06 seconds\n-----------------\n-----------------\nIteration: \t 1\nNumTrajs: \t 200\nNumTimesteps: \t 32898\nLoss:     \t 0.1925097107887268\nMaxRew: \t -204.07\n",
     [(0, 0.1269063800573349, None), (1, 0.1925097107887268, None)]),
    ("torchforge", ["trainer/loss", "trainer/grad_norm"],
     "WandbBackend: Logged 86 metrics at step 1\n=== [global_logger_fF8h_r0] - METRICS STEP 1 ===\n  buffer/add/count_episodes_added: 24.0\n  trainer/grad_norm: 0.75\n  trainer/loss: -7.450580596923828e-09\n==============================\n"
     "WandbBackend: Logged 86 metrics at step 2\n=== [global_logger_fF8h_r0] - METRICS STEP 2 ===\n  buffer/add/count_episodes_added: 24.0\n  trainer/grad_norm: 0.5\n  trainer/loss: 0.0125\n==============================\n",
     [(1, -7.450580596923828e-09, 0.75), (2, 0.0125, 0.5)]),
    ("tf-tutorial", ["Loss", None],
     "Epoch 1 Batch 0 Loss 4.6512 Accuracy 0.0000\nEpoch 1 Batch 50 Loss 4.1235 Accuracy 0.0201\nEpoch 1 Loss 4.3512 Accuracy 0.0100\nTime taken for 1 epoch: 60.1 secs\n",
     [(0, 4.6512, None), (50, 4.1235, None)]),
    ("rank-prefix-fraction", ["loss", None],
     "2025-01-01 10:00:00 [rank 3/8] step 5 loss 2.5\n2025-01-01 10:00:00 [rank 0/8] step 5 loss 2.4\n2025-01-01 10:00:01 [rank 0/8] step 6 loss 2.3\n2025-01-01 10:00:01 [rank 3/8] step 6 loss 2.2\n",
     [(5, 2.4, None), (6, 2.3, None)]),
    ("mpirun-tags", ["loss", None],
     "[1,0]<stdout>: iter 1 loss 2.5\n[1,1]<stdout>: iter 1 loss 2.6\n[1,1]<stdout>: iter 2 loss 2.5\n[1,0]<stdout>: iter 2 loss 2.4\n",
     [(1, 2.5, None), (2, 2.4, None)]),
    ("lightning-step-epoch", ["train_loss_step", None],
     "Epoch 0:  10%|█         | 1/10 [00:01<00:09,  1.00it/s, v_num=0, train_loss_step=2.31]\rEpoch 0:  20%|██        | 2/10 [00:02<00:08,  1.00it/s, v_num=0, train_loss_step=2.21]\rEpoch 1:  10%|█         | 1/10 [00:01<00:09,  1.00it/s, v_num=0, train_loss_step=2.11, train_loss_epoch=2.26]\n",
     [(1, 2.31, None), (2, 2.21, None), (11, 2.11, None)]),
    ("chinese-sentences", ["当前损失值", "梯度范数"],
     "当前步数: 10/100，当前损失值为 2.31，梯度范数为 0.5，学习率 1e-5\n当前步数: 20/100，当前损失值为 2.21，梯度范数为 nan，学习率 1e-5\n",
     [(10, 2.31, 0.5), (20, 2.21, "nan")]),
    ("chinese-fullwidth", ["损失", None],
     "【训练】轮次：1，步数：10，损失：2.31，耗时：0.5 秒\n【验证】轮次：1，步数：10，损失：2.5\n【训练】轮次：1，步数：20，损失：2.21，耗时：0.5 秒\n",
     [(10, 2.31, None), (20, 2.21, None)]),
    ("unit-in-parens", ["loss", "grad norm"],
     "step 1: loss (nats): 2.5, grad norm (L2): 0.31\nstep 2: loss (nats): 2.4, grad norm (L2): 0.30\n",
     [(1, 2.5, 0.31), (2, 2.4, 0.3)]),
    ("rich-table", ["loss", "grad_norm"],
     "┏━━━━━━┳━━━━━━━┳━━━━━━━━━━━┓\n┃ step ┃ loss  ┃ grad_norm ┃\n┡━━━━━━╇━━━━━━━╇━━━━━━━━━━━┩\n│ 1    │ 2.500 │ 0.750     │\n│ 2    │ 2.400 │ nan       │\n└──────┴───────┴───────────┘\n",
     [(1, 2.5, 0.75), (2, 2.4, "nan")]),
    ("megatron-glued", ["lm loss", "grad norm"],
     " iteration        1/    1000 | lm loss: 1.192044E+01 | grad norm: 4.107 | number of nan iterations:   0 | iteration        2/    1000 | lm loss: 1.182044E+01 | grad norm: 4.007 | number of nan iterations:   0 |\n"
     " iteration        3/    1000 | lm loss: 1.172044E+01 | grad norm: 3.907 | number of nan iterations:   0 |\n",
     [(1, 11.92044, 4.107), (2, 11.82044, 4.007), (3, 11.72044, 3.907)]),
    ("semicolons-step-last", ["Loss", "Grad"],
     "Loss=2.3;Grad=0.3;Step=10\nLoss=2.2;Grad=0.2;Step=20\n", [(10, 2.3, 0.3), (20, 2.2, 0.2)]),
    ("nan-forms", ["loss", "grad_norm"],
     "step 1 loss -nan grad_norm INF\nstep 2 loss NaN grad_norm -inf\nstep 3 loss 'nan' grad_norm infinity\n",
     [(1, "nan", "inf"), (2, "nan", "-inf"), (3, "nan", "inf")]),
    ("human-suffix", ["grad_norm", None],
     "iteration: 5 / 90 | global_batch_size: 1.02K | grad_norm: 1.02K\niteration: 6 / 90 | global_batch_size: 1.02K | grad_norm: 998\n",
     [(5, 1020.0, None), (6, 998.0, None)]),
    ("deepspeed-log-dist", ["loss", None],
     "[2024-05-05 11:59:40,221] [INFO] [logging.py:96:log_dist] [Rank 0] step=10, skipped=0, lr=[1e-05, 1e-05], mom=[(0.9, 0.95), (0.9, 0.95)]\n[2024-05-05 11:59:40,225] [INFO] [logging.py:96:log_dist] [Rank 0] step=10, loss=2.5012, throughput=11.2\n"
     "[2024-05-05 11:59:50,221] [INFO] [logging.py:96:log_dist] [Rank 0] step=20, skipped=0, lr=[1e-05, 1e-05], mom=[(0.9, 0.95), (0.9, 0.95)]\n[2024-05-05 11:59:50,225] [INFO] [logging.py:96:log_dist] [Rank 0] step=20, loss=2.4012, throughput=11.2\n",
     [(10, 2.5012, None), (20, 2.4012, None)]),
    ("last-rank-prints", ["loss", "grad_norm"],
     "[rank7]: step 1 loss 2.5\n[rank0]: step 1 grad_norm 0.75\n[rank0]: step 2 grad_norm 0.5\n[rank7]: step 2 loss 2.4\n",
     [(1, 2.5, 0.75), (2, 2.4, 0.5)]),
    ("path-noise", ["loss", None],
     "/data/eval/test_val/train.py:120: UserWarning: loss is deprecated in 2.0\n[/data/test/train.py:33] step 1, loss: 2.5\n[/data/test/train.py:33] step 2, loss: 2.4\n",
     [(1, 2.5, None), (2, 2.4, None)]),
    ("side-name-test", ["loss", None],
     "[test] step 1 | loss 2.5\n[test] step 2 | loss 2.4\n", [(1, 2.5, None), (2, 2.4, None)]),
    ("composer-progress", ["loss/train/total", None],
     "train          Epoch   0:    0%|                         | 1/4800 [00:05<6:40:00,  5.00s/ba, loss/train/total=11.6401]\ntrain          Epoch   0:    0%|                         | 2/4800 [00:10<6:40:00,  5.00s/ba, loss/train/total=11.5117]\n",
     [(1, 11.6401, None), (2, 11.5117, None)]),
    ("seq2seq-no-step-epoch-mean", ["loss", None],
     "Epoch: 01 | Time: 0m 26s\n\tTrain Loss: 5.052 | Train PPL: 156.386\n\t Val. Loss: 4.9 | Val. PPL: 139.1\nEpoch: 02 | Time: 0m 26s\n\tTrain Loss: 4.483 | Train PPL:  88.521\n\t Val. Loss: 4.8 | Val. PPL: 121.1\n",
     [(1, 5.052, None), (2, 4.483, None)]),
    ("llamafactory-jsonl", ["loss", None],
     '{"current_steps": 10, "total_steps": 9420, "loss": 11.3127, "lr": 5.271e-06, "epoch": 0.02, "percentage": 0.11, "elapsed_time": "0:10:03", "remaining_time": "6 days, 0:02:17"}\n'
     '{"current_steps": 20, "total_steps": 9420, "loss": 9.8842, "lr": 6.031e-06, "epoch": 0.04, "percentage": 0.21, "elapsed_time": "0:11:29", "remaining_time": "5 days, 23:10:33"}\n'
     '{"current_steps": 20, "total_steps": 9420, "eval_loss": 9.7, "epoch": 0.04, "percentage": 0.21, "elapsed_time": "0:11:40", "remaining_time": "5 days, 23:10:33"}\n',
     [(10, 11.3127, None), (20, 9.8842, None)]),
    ("torchtune-bar", ["Loss", None],
     "  0%|          | 0/100 [00:00<?, ?it/s]\r  1%|          | 1/100 [00:02<03:20,  2.02s/it]\r1|1|Loss: 2.0711:   1%|          | 1/100 [00:02<03:20,  2.02s/it]\r1|1|Loss: 2.0711:   2%|▏         | 2/100 [00:04<03:18,  2.02s/it]\r1|2|Loss: 1.9012:   2%|▏         | 2/100 [00:04<03:18,  2.02s/it]\n",
     [(1, 2.0711, None), (2, 1.9012, None)]),
    ("keras3", ["loss", None],
     f"Epoch 1/2\n{ESC}[1m  1/100{ESC}[0m {ESC}[37m━━━━━━━━━━━━━━━━━━━━{ESC}[0m {ESC}[1m3:10{ESC}[0m 2s/step - accuracy: 0.1250 - loss: 2.3512\r{ESC}[1m 50/100{ESC}[0m {ESC}[32m━━━━━━━━━━{ESC}[0m{ESC}[37m━━━━━━━━━━{ESC}[0m {ESC}[1m5s{ESC}[0m 100ms/step - accuracy: 0.2250 - loss: 2.1512\n",
     [(1, 2.3512, None), (50, 2.1512, None)]),
    ("accelerate-bar", ["loss", None],
     "Epoch [1/3]:  10%|█         | 10/100 [00:10<01:30,  1.0it/s, loss=2.3125]\nEpoch [1/3]:  20%|██        | 20/100 [00:20<01:20,  1.0it/s, loss=2.25]\n",
     [(10, 2.3125, None), (20, 2.25, None)]),
    ("torchtitan-pp", ["loss", "grad_norm"],
     "[rank0]:[titan] 2025-05-28 21:13:37,816 - root - INFO - step:  1  loss: -1.0000  grad_norm:  1.5000  memory: 36.90GiB(46.63%)  tps: 4\n[rank15]:[titan] 2025-05-28 21:13:37,816 - root - INFO - step:  1  loss:  8.1204  grad_norm:  1.5000  memory: 36.90GiB(46.63%)  tps: 4\n"
     "[rank0]:[titan] 2025-05-28 21:14:39,054 - root - INFO - step:  2  loss: -1.0000  grad_norm:  1.4000  memory: 42.78GiB(54.06%)  tps: 8\n[rank15]:[titan] 2025-05-28 21:14:39,054 - root - INFO - step:  2  loss:  8.0204  grad_norm:  1.4000  memory: 42.78GiB(54.06%)  tps: 8\n",
     [(1, 8.1204, 1.5), (2, 8.0204, 1.4)]),
    ("lists-and-tuples", ["loss", "grad_norm"],
     "step=tensor(5) loss: [2.3125] grad_norm: (0.5,)\nstep=tensor(6) loss: [2.25] grad_norm: (nan,)\n", [(5, 2.3125, 0.5), (6, 2.25, "nan")]),
    ("one-line-stream", ["loss", None],
     "Iteration 1, loss = 2.3125; Iteration 2, loss = 2.25; Iteration 3, loss = 2.125;", [(1, 2.3125, None), (2, 2.25, None), (3, 2.125, None)]),
    ("glued-digits", ["loss", None],
     "iter0005: loss 2.3\niter0006: loss 2.2\n", [(5, 2.3, None), (6, 2.2, None)]),
    ("nested-json", ["loss", "grad_norm"],
     '{"step": 1, "metrics": {"loss": 2.5, "grad_norm": 0.7}, "time": 1.0}\n{"step": 2, "metrics": {"loss": 2.4, "grad_norm": 0.6}, "time": 1.0}\n', [(1, 2.5, 0.7), (2, 2.4, 0.6)]),
    ("yaml-docs", ["loss", "grad_norm"],
     "- step: 1\n  loss: 2.5\n  grad_norm: 0.7\n- step: 2\n  loss: 2.4\n  grad_norm: 0.6\n", [(1, 2.5, 0.7), (2, 2.4, 0.6)]),
    ("pdsh", ["loss", None],
     "10.0.0.1: step 5 | loss 2.3 | lr 0.1\n10.0.0.2: step 5 | loss 2.3 | lr 0.1\n10.0.0.1: step 6 | loss 2.2 | lr 0.1\n10.0.0.2: step 6 | loss 2.2 | lr 0.1\n", [(5, 2.3, None), (6, 2.2, None)]),
    ("at-step-behind", ["loss", None], "loss 2.31 @ step 10 (ema loss: 2.5)\nloss 2.21 @ step 20 (ema loss: 2.4)\n", [(10, 2.31, None), (20, 2.21, None)]),
    ("step-line-then-values", ["loss", "grad_norm"],
     "[2025-01-01] starting step 1 of 100\n[2025-01-01] forward done, loss=2.5\n[2025-01-01] backward done, grad_norm=0.5\n[2025-01-01] starting step 2 of 100\n[2025-01-01] forward done, loss=2.4\n[2025-01-01] backward done, grad_norm=0.4\n",
     [(1, 2.5, 0.5), (2, 2.4, 0.4)]),
    ("megatron-last-rank-tag", ["lm loss", "grad norm"],
     "[Rank 15] [2025-01-01 10:00:00] iteration 1/ 10 | lm loss: 9.5E+00 | grad norm: 1.5 |\n[Rank 15] [2025-01-01 10:00:01] iteration 2/ 10 | lm loss: 9.4E+00 | grad norm: 1.4 |\n", [(1, 9.5, 1.5), (2, 9.4, 1.4)]),
    ("hf-wrapped-dict", ["loss", "grad_norm"],
     "  1%|          | 10/1000 [00:10<16:30,  1.00s/it]\n{'loss': 2.3125, 'learning_rate': 4.511e-06, 'grad_no\nrm': 0.5125, 'epoch': 0.02}\n  2%|          | 20/1000 [00:20<16:20,  1.00s/it]\n{'loss': 2.2125, 'learning_rate': 5.511e-06, 'grad_no\nrm': 0.4125, 'epoch': 0.04}\n",
     [(10, 2.3125, 0.5125), (20, 2.2125, 0.4125)]),
    ("hf-two-bars", ["loss", None],
     "Train:   0%|          | 10/1000 [00:10<16:30,  1.00s/it]\nEval:  50%|█████     | 5/10 [00:01<00:01,  5.00it/s]\n{'loss': 2.3125, 'epoch': 0.02}\nTrain:   0%|          | 20/1000 [00:10<16:30,  1.00s/it]\n{'loss': 2.2125, 'epoch': 0.02}\n",
     [(10, 2.3125, None), (20, 2.2125, None)]),
    ("batch-in-epoch-no-total", ["loss", None],
     "Epoch 0 batch 0 loss 2.5\nEpoch 0 batch 1 loss 2.4\nEpoch 1 batch 0 loss 2.3\nEpoch 1 batch 1 loss 2.2\n", [(0, 2.5, None), (1, 2.4, None), (2, 2.3, None), (3, 2.2, None)]),
    ("epoch-only", ["Loss", None], "Epoch 1/3, Loss: 2.5, Time: 3.2s\nEpoch 2/3, Loss: 2.4, Time: 3.2s\nEpoch 3/3, Loss: 2.3, Time: 3.2s\n", [(1, 2.5, None), (2, 2.4, None), (3, 2.3, None)]),
    ("loss-only-lines", ["loss", None], "building model\nloss: 2.5\nloss: 2.4\nloss: 2.3\n", [(1, 2.5, None), (2, 2.4, None), (3, 2.3, None)]),
    ("resumed-then-no-steps", ["loss", None], "Resuming from step 0\nloss: 2.5\nloss: 2.4\nloss: 2.3\nloss: 2.2\nloss: 2.1\nloss: 2.0\n", [(1, 2.5, None), (2, 2.4, None), (3, 2.3, None), (4, 2.2, None), (5, 2.1, None), (6, 2.0, None)]),
    ("args-dump", ["loss", "grad norm"],
     "  loss .......................................... 1.0\n  grad_norm ..................................... 1.0\n  train_iters ................................... 100\n iteration 1/ 100 | loss: 2.5 | grad norm: 0.5 |\n iteration 2/ 100 | loss: 2.4 | grad norm: 0.4 |\n", [(1, 2.5, 0.5), (2, 2.4, 0.4)]),
    ("loss-scale-only-lines", ["loss", "grad norm"],
     "step 1 | loss scale: 65536.0 | skipped\nstep 2 | loss: 2.5 | loss scale: 32768.0 | grad norm: 1.0\nstep 3 | loss scale: 32768.0 | skipped\nstep 4 | loss: 2.4 | loss scale: 32768.0 | grad norm: 0.9\n", [(2, 2.5, 1.0), (4, 2.4, 0.9)]),
    ("tee-duplicated-log", ["loss", None], "step 1 loss 2.5\nstep 1 loss 2.5\nstep 2 loss 2.4\nstep 2 loss 2.4\n", [(1, 2.5, None), (2, 2.4, None)]),
    ("restart-same-step-with-banner", ["loss", None],
     "step 1 loss 3.0\nstep 2 loss 2.9\nLoading checkpoint from ./ckpt_1\nResumed at step 1\nstep 2 loss 2.95\nstep 3 loss 2.85\n", [(1, 3.0, None), (2, 2.95, None), (3, 2.85, None)]),
    ("utf8-chinese-noise", ["loss", None], "【警告】第 2 张卡通信耗时 812.5 毫秒，损失 loss 暂不上报\nstep 1 loss 2.5\n【警告】loss 缩放 65536\nstep 2 loss 2.4\n", [(1, 2.5, None), (2, 2.4, None)]),
    ("mixed-eval-style", ["loss", None],
     "[TRAIN] step 100 loss 2.5\n[VALID] step 100 loss 2.6\nevaluation @ step 100: loss=2.55\nEvaluating:  50%|█████     | 5/10 [00:01<00:01,  5.00it/s, loss=2.7]\n[TRAIN] step 200 loss 2.4\nTest: step 200 loss 2.65\nvalidation results: loss 2.66\n", [(100, 2.5, None), (200, 2.4, None)]),
    ("xtuner-units-change", ["loss", "grad_norm"],
     "Step 1/100 lr: 0.1 loss: 2.5 max_memory: 900 MB grad_norm: 13.904 tgs: 911.2\nStep 2/100 lr: 0.1 loss: 2.4 max_memory: 1.2 GB grad_norm: 12.9 tgs: 911.2\n", [(1, 2.5, 13.904), (2, 2.4, 12.9)]),
    ("chinese-fractions", ["损失", None],
     "第 10/100 步 轮次：1 损失 2.5\n第 20/100 步 轮次：1 损失 2.4\n", [(10, 2.5, None), (20, 2.4, None)]),
    ("cur-iter", ["loss", None], "cur_iter: 10, max_iter: 100, loss: 2.5\ncur_iter: 20, max_iter: 100, loss: 2.4\n", [(10, 2.5, None), (20, 2.4, None)]),
    ("dates-between-bar-and-values", ["loss", None],
     "  0%|          | 10/1000 [00:10<16:30,  1.00s/it]\n[04/05 01:30:24] INFO: logged 3/4 of the metrics\n{'loss': 2.3125, 'epoch': 0.02}\n"
     "  0%|          | 20/1000 [00:20<16:30,  1.00s/it]\n[04/05 01:30:34] INFO: logged 3/4 of the metrics\n{'loss': 2.2125, 'epoch': 0.04}\n",
     [(10, 2.3125, None), (20, 2.2125, None)]),
    ("mindspore-outputs-are", ["outputs are", None],
     "epoch: 1, current epoch percent: 0.100, step: 10, outputs are (Tensor(shape=[], dtype=Float32, value= 9.87), Tensor(shape=[], dtype=Bool, value= False))\n"
     "epoch: 1, current epoch percent: 0.200, step: 20, outputs are (Tensor(shape=[], dtype=Float32, value= 9.51), Tensor(shape=[], dtype=Bool, value= False))\n",
     [(10, 9.87, None), (20, 9.51, None)]),
    ("lightning-two-losses", ["loss", None],
     "Epoch 0:  10%|█         | 10/100 [00:05<00:45,  2.0it/s, loss=2.31, v_num=3, train/loss_step=2.35]\nEpoch 0:  20%|██        | 20/100 [00:10<00:40,  2.0it/s, loss=2.21, v_num=3, train/loss_step=2.25]\n",
     [(10, 2.31, None), (20, 2.21, None)]),
    ("rank-colon-after-node", ["loss", None],
     "node01: [rank:3] step 10 loss 2.5\nnode01: [rank:0] step 10 loss 2.4\nnode01: [rank:0] step 20 loss 2.3\nnode01: [rank:3] step 20 loss 2.2\n", [(10, 2.4, None), (20, 2.3, None)]),
    ("iter-as-string-fraction", ["loss", None], '{"iter": "10/100", "loss": "2.5", "eta": "0:10:00"}\n{"iter": "20/100", "loss": "2.4", "eta": "0:09:00"}\n', [(10, 2.5, None), (20, 2.4, None)]),
    ("camel-keys", ["Loss", "GradNorm"], "Train | Epoch: 1 | Iter: 10 | Loss: 2.31 | GradNorm: 0.5\nTrain | Epoch: 1 | Iter: 20 | Loss: 2.21 | GradNorm: 0.4\n", [(10, 2.31, 0.5), (20, 2.21, 0.4)]),
    ("chinese-step", ["损失值", None], "训练步：10，损失值=2.31\n训练步：20，损失值=2.21\n", [(10, 2.31, None), (20, 2.21, None)]),
    ("step-joined", ["loss", None], "step-10: loss=2.5\nstep-20: loss=2.4\n", [(10, 2.5, None), (20, 2.4, None)]),
    ("step-underscore", ["loss", None], "step_10 loss=2.5\nstep_20 loss=2.4\n", [(10, 2.5, None), (20, 2.4, None)]),
    ("tornado-style", ["loss", None], "[I 250101 10:00:00 train:33] 10: loss 2.5\n[I 250101 10:00:10 train:33] 20: loss 2.4\n", [(10, 2.5, None), (20, 2.4, None)]),
    ("dashes", ["loss", None], "2025-01-01 10:00:00 - INFO - 10 - loss: 2.5\n2025-01-01 10:00:10 - INFO - 20 - loss: 2.4\n", [(10, 2.5, None), (20, 2.4, None)]),
    ("step-in-parens-last", ["Loss", "Grad"], "Loss 2.5 Grad 0.3 (step 10)\nLoss 2.4 Grad 0.2 (step 20)\n", [(10, 2.5, 0.3), (20, 2.4, 0.2)]),
    ("update-dict", ["loss", None], "Update 10: {'loss': 2.5, 'kl': 0.1}\nUpdate 20: {'loss': 2.4, 'kl': 0.1}\n", [(10, 2.5, None), (20, 2.4, None)]),
    ("federated-rounds", ["loss", None], "Round 1 | clients 10 | loss 2.5\nRound 2 | clients 10 | loss 2.4\n", [(1, 2.5, None), (2, 2.4, None)]),
    ("caffe", ["loss", None],
     "I0101 10:00:00.000000   123 solver.cpp:228] Iteration 0 (0 iter/s, 1s/100 iters), loss = 2.35\nI0101 10:00:00.000000   123 solver.cpp:244]     Train net output #0: loss = 2.36 (* 1 = 2.36 loss)\n"
     "I0101 10:00:10.000000   123 solver.cpp:337] Iteration 100, Testing net (#0)\nI0101 10:00:10.000000   123 solver.cpp:404]     Test net output #1: loss = 2.2 (* 1 = 2.2 loss)\n"
     "I0101 10:00:10.000000   123 solver.cpp:228] Iteration 100 (5 iter/s, 20s/100 iters), loss = 2.25\nI0101 10:00:10.000000   123 solver.cpp:244]     Train net output #0: loss = 2.26 (* 1 = 2.26 loss)\n",
     [(0, 2.35, None), (100, 2.25, None)]),
    ("mxnet", ["loss", None], "INFO:root:Epoch[0] Batch [50]\tSpeed: 100.00 samples/sec\tloss=2.35\nINFO:root:Epoch[0] Batch [100]\tSpeed: 100.00 samples/sec\tloss=2.25\nINFO:root:Epoch[0] Train-loss=2.3\nINFO:root:Epoch[0] Validation-loss=2.4\n", [(50, 2.35, None), (100, 2.25, None)]),
    ("xgboost", ["train-rmse", None], "[0]\ttrain-rmse:0.5012\teval-rmse:0.6\n[10]\ttrain-rmse:0.4012\teval-rmse:0.5\n", [(0, 0.5012, None), (10, 0.4012, None)]),
    ("hf-logger-prefix", ["loss", "grad_norm"],
     "[INFO|trainer.py:2414] 2025-06-20 10:11:03,120 >> {'loss': 2.5, 'grad_norm': 0.5, 'learning_rate': 1e-5, 'epoch': 0.1, 'step': 10}\n[INFO|trainer.py:2414] 2025-06-20 10:12:03,120 >> {'loss': 2.4, 'grad_norm': 0.4, 'learning_rate': 1e-5, 'epoch': 0.2, 'step': 20}\n", [(10, 2.5, 0.5), (20, 2.4, 0.4)]),
    ("percent-and-iter", ["loss", None], "Iter 10/100 (10.0%) loss 2.5\nIter 20/100 (20.0%) loss 2.4\n", [(10, 2.5, None), (20, 2.4, None)]),
    ("value-in-next-cell-table", ["Loss", None], "+-------+--------+\n| Step  | 10     |\n| Loss  | 2.5000 |\n+-------+--------+\n+-------+--------+\n| Step  | 20     |\n| Loss  | 2.4000 |\n+-------+--------+\n", [(10, 2.5, None), (20, 2.4, None)]),
    ("parentheses-keys", ["loss(avg)", None], "step 10 loss(cur): 2.6 loss(avg): 2.5\nstep 20 loss(cur): 2.5 loss(avg): 2.4\n", [(10, 2.5, None), (20, 2.4, None)]),
    ("pipe-key", ["|g|", None], "step 10 loss 2.5 |g| 0.5\nstep 20 loss 2.4 |g| 0.4\n", [(10, 0.5, None), (20, 0.4, None)]),
    ("loss-dict-of-tensors", ["lm loss", None], "iteration 1: {'lm loss': tensor([2.3125], device='npu:0'), 'moe loss': tensor([0.1], device='npu:0')}\niteration 2: {'lm loss': tensor([2.25], device='npu:0'), 'moe loss': tensor([0.1], device='npu:0')}\n", [(1, 2.3125, None), (2, 2.25, None)]),
    ("eval-between-epochs-keras-like", ["loss", None], "Epoch 1/2\n100/100 - 3s - loss: 2.5 - acc: 0.1 - val_loss: 2.6\nEpoch 2/2\n100/100 - 3s - loss: 2.4 - acc: 0.2 - val_loss: 2.5\n", [(100, 2.5, None), (200, 2.4, None)]),
    ("restart-in-epoch", ["loss", None], "Epoch 1 step 1/3 loss 3.0\nEpoch 1 step 2/3 loss 2.9\nEpoch 1 step 3/3 loss 2.8\nEpoch 2 step 1/3 loss 2.7\nEpoch 2 step 2/3 loss 2.6\nresuming from epoch 2\nEpoch 2 step 1/3 loss 2.75\nEpoch 2 step 2/3 loss 2.65\nEpoch 2 step 3/3 loss 2.55\n",
     [(1, 3.0, None), (2, 2.9, None), (3, 2.8, None), (4, 2.75, None), (5, 2.65, None), (6, 2.55, None)]),
    ("bom-gbk-like", ["loss", None], "\ufeffstep 1 loss 2.5\nstep 2 loss 2.4\n", [(1, 2.5, None), (2, 2.4, None)]),
]


@pytest.mark.parametrize("chunk", [1 << 20, 5, 1])
@pytest.mark.parametrize(("keywords", "text", "right"), [entry[1:] for entry in FORMATS], ids=[entry[0] for entry in FORMATS])
def test_formats(keywords: list, text: str, right: list, chunk: int) -> None:
    """More formats, each with the trap that it sets."""
    assert rows(read(text.encode(), keywords, chunk)) == as_text(right)


def test_encodings_and_line_ends() -> None:
    """GBK, a byte order mark, CRLF and lone CR."""
    text = "第 1 步 损失: 2.5\n第 2 步 损失: 2.25\n"
    for data in (text.encode("gbk"), text.encode("utf-8-sig"), text.replace("\n", "\r\n").encode(), text.replace("\n", "\r").encode()):
        for chunk in (1 << 20, 1):
            assert rows(read(data, ["损失", None], chunk)) == [[1, "2.5", None], [2, "2.25", None]]


def test_number_that_the_end_of_the_log_cuts_off() -> None:
    """A log that ends in the middle of a number does not give half of it; a whole number at the end counts."""
    text = b"step 1 | loss 2.5000E+00 | norm 1.250\nstep 2 | loss 2.4000E+00 | norm 1.125\nstep 3 | loss 2.3000E+00 | norm 1.000"
    whole = [[1, "2.5", "1.25"], [2, "2.4", "1.125"], [3, "2.3", "1.0"]]
    assert rows(read(text, ["loss", "norm"])) == whole
    assert rows(read(text[:-1], ["loss", "norm"])) == [*whole[:2], [3, "2.3", None]]
    assert rows(read(text[:-14], ["loss", "norm"])) == whole[:2]
    assert rows(read(text[:-17], ["loss", "norm"])) == whole[:2]


LINES = {
    "megatron": (" [2025-03-11 14:{m:02d}:{s:02d}] iteration {i:8d}/    1000 | consumed samples: {c:12d} | lr: {x:.6E} | lm loss: {l:.6E} | "
                 "loss scale: 1.0 | grad norm: {g:.3f} | num zeros: 0 |\n", ["lm loss", "grad norm"]),
    "mtp": (" iteration {i:8d}/    1000 | mtp head 0 lm loss: {x:.6E} | mtp head 1 lm loss: {x:.6E} | lm loss: {l:.6E} | grad norm: {g:.3f} |\n",
            ["lm loss", "grad norm"]),
    "ranks": ("[rank{r}]:[titan] 2026-05-18 16:{m:02d}:{s:02d},338 - root - INFO - step: {i:2d}  loss: {l:8.5f}  grad_norm: {g:7.4f}  "
              "memory:  9.46GiB(64.99%)  tps: 10,0{s:02d}\n", ["loss", "grad_norm"]),
    "json": ('{{"step": {i}, "loss": {l!r}, "grad_norm": {g!r}, "lr": {x!r}}}\n', ["loss", "grad_norm"]),
    "epochs": ("Epoch {e} step {k}/50 loss {l:.4f} grad_norm {g:.4f}\n", ["loss", "grad_norm"]),
    "short numbers": ("iteration: {i} / 90000 | lm_loss: {l:.3g} | grad_norm: {g:.3g}\n", ["lm_loss", "grad_norm"]),
    "zero padded": ("step {i:08d}/00001000 | loss {l:.4f} | grad-norm {g:.4f} | tok 28,590\n", ["loss", "grad-norm"]),
    "thousands": ("Step {i:,} | loss: {l:.4f} | grad: {g:.4f}\n", ["loss", "grad"]),
}
NOISE = ["[WARN] something loss is bad\n", "time (ms) | forward: 12.3\n", "\n", "[EVAL] step {i} loss 9.9 grad_norm 9.9\n", "saving step {i}\n",
         "validation loss at iteration {i} | lm loss value: 3.0 |\n", "wandb: loss 3.3\n", "Loading checkpoint ... resumed\n"]


def disturbed_log(template: str, rnd: random.Random) -> bytes:
    """A log with NaN, glued, torn and doubled lines, validation lines, and a restart."""
    out, step, restart = [], 0, rnd.random() < 0.5
    while step < 150:
        step += 1
        if restart and step == 100:
            step, restart = 70, False
            out.append("Loading checkpoint from ./ckpt\n")
        loss, norm = 9 * 0.99**step + rnd.random() * 0.01, rnd.random() * 5
        for rank in [3, 0, 1, 2] if "{r}" in template else [0]:
            values = {"i": step, "m": step // 60 % 60, "s": step % 60, "c": step * 32, "l": loss, "g": norm, "x": rnd.random(), "r": rank}
            line = template.format(**values, e=(step - 1) // 50, k=(step - 1) % 50 + 1)
            kind = rnd.choices(["whole", "nan", "glued", "torn", "doubled"], [95, 2, 1, 1, 1])[0]
            line = line.replace(f"{norm:.3f}", "nan").replace(f"{loss:.6E}", "nan") if kind == "nan" else line
            out.append({"glued": line.rstrip("\n"), "torn": line[len(line) // 2 :], "doubled": line * 2}.get(kind, line))
        if rnd.random() < 0.15:
            out.append(rnd.choice(NOISE).format(i=step))
    return "".join(out).encode()


@pytest.mark.parametrize("name", LINES)
def test_known_form_reads_as_full_reading(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fast reading of lines of a known form gives what the full reading gives, wherever the pieces are cut."""
    template, keywords = LINES[name]
    for seed in range(8):
        data = disturbed_log(template, random.Random(seed))
        monkeypatch.setattr(precision_comparer, "TRUSTED", 10**9)
        full = read(data, keywords)
        monkeypatch.setattr(precision_comparer, "TRUSTED", 8)
        for chunk in (1 << 20, 997, 64):
            fast = read(data, keywords, chunk)
            assert rows(fast) == rows(full)
            assert [list(s.last_digits) for s in fast.series.values()] == [list(s.last_digits) for s in full.series.values()]


def test_memory_does_not_grow_with_the_log() -> None:
    """Neither noise nor lines without end are kept."""
    reader = MetricReader(["loss", None])
    for _ in range(64):
        reader.feed(b"nothing to see here\n" * 5000)
        assert len(reader._data) + len(reader._tail) < 1 << 20
    for _ in range(64):
        reader.feed(b"x" * 200_000)
        assert len(reader._data) + len(reader._tail) < 10 << 20
    reader.feed(b"\nstep 1 loss 2.5\n")
    assert reader.latest == (1, 2.5)


def test_latest_follows_a_growing_log() -> None:
    """The progress line sees each step as soon as its line is complete."""
    reader = MetricReader(["lm loss", "grad norm"])
    assert reader.latest is None
    for step in range(1, 30):
        reader.feed(f" iteration {step:8d}/ 100 | lm loss: {10 - step / 10:.6E} | grad nor".encode())
        assert (reader.latest or (0,))[0] == step - 1
        reader.feed(b"m: 1.000 |\n")
        assert reader.latest == (step, pytest.approx(10 - step / 10))


def test_notes() -> None:
    """Restarts, several ranks, validation lines and another spelling are told."""
    restarted = read(b"step 1 loss 3\nstep 2 loss 2\nstep 3 loss 1\nstep 1 loss 3\n", ["loss", None])
    assert restarted.notes == ["Loss: 训练在 step 1 处重新开始过, 之后的数值以后一次为准"]
    ranks = read(b"[rank1]: step 1 loss 3\n[rank0]: step 1 loss 2\n", ["loss", None])
    assert ranks.notes == ["Loss: 日志中有多个 rank, 取 rank 0"]
    spelled = read(b"step 1 | LM_Loss: 3.0\n[EVAL] step 1 | LM_Loss: 2.0\n", ["lm loss", None])
    assert spelled.notes == ["Loss: 关键字 'lm loss' 在日志中写作 'LM_Loss'", "跳过了 1 行验证或评估的数值"]
    assert read(b"loss: 3\nloss: 2\n", ["loss", None]).steps == "日志中没有步数, 按出现的先后编号"
    assert spelled.steps == "step"


def test_nothing_matches() -> None:
    """The error names the keyword, the nearest fields and what numeric fields there are."""
    text = b"step 1 | lm_los: 2.5 | grad_norm: 0.5\nstep 2 | lm_los: 2.4 | grad_norm: 0.4\n"
    with pytest.raises(RunError) as caught:
        read_metrics([text], ["lm loss", "grad norm"], "baseline")
    message = str(caught.value)
    assert "baseline" in message and "'lm loss'" in message and "lm_los (2 次)" in message and "grad_norm (2 次)" in message
    assert message.index("最接近的字段: lm_los") < message.index("日志中的数值字段")
    with pytest.raises(RunError, match="没有任何数值字段"):
        read_metrics([b"nothing\n"], ["lm loss", None], "test")


def test_missing_grad_norm_is_left_out() -> None:
    """A null keyword, or one that is not in the log, gives no series."""
    for keywords in (["loss", None], ["loss", "grad norm"], ["loss"]):
        assert set(read_metrics([b"step 1 loss 2.5\n"], keywords, "test").series) == {"loss"}


def test_score_log() -> None:
    """The number of rows with a loss tells which file has the metrics."""
    assert score_log(b"step 1 loss 2.5\nstep 2 loss 2.4\n", ["loss", "grad norm"]) == 2
    assert score_log(b"stderr: something failed\n", ["loss", "grad norm"]) == 0


def curves(loss, norm=None, form: str = "{:.6f}", first: int = 1) -> Metrics:
    """Metrics as if read from a log with these values."""
    lines = [f"step {i} loss {form.format(x)}" + (f" norm {form.format(norm[i - first])}" if norm else "") for i, x in enumerate(loss, first)]
    return read("\n".join(lines).encode(), ["loss", "norm" if norm else None])


def compare(a: Metrics, b: Metrics, tolerance: float = 0.001, mode: str = "absolute"):
    return compare_metrics(a, b, tolerance, mode)


def test_equal_curves_agree() -> None:
    """No difference: every number of the report is 0 and nothing is said."""
    a = curves([3, 2.5, math.nan, math.inf], [1, 2, 3, 4])
    result = compare(a, a)
    diff = result.diffs["loss"]
    assert result.agrees and not result.sentences
    assert (diff.keyword, diff.steps_compared, diff.mean_abs_diff, diff.max_rel_diff) == ("loss", 4, 0, 0)
    assert diff.first_step_over_tolerance is diff.first_bad_index is diff.previous_good_step is None


def test_differences() -> None:
    """Mean and maximum, absolute and relative, and the first step over the tolerance."""
    result = compare(curves([2, 4, 8, 16]), curves([2, 4, 8.5, 17]))
    diff = result.diffs["loss"]
    assert not result.agrees
    assert (diff.mean_abs_diff, diff.max_abs_diff) == (0.375, 1)
    assert (diff.mean_rel_diff, diff.max_rel_diff) == (0.03125, 0.0625)
    assert (diff.first_step_over_tolerance, diff.first_bad_index, diff.previous_good_step) == (3, 2, 2)


def test_relative_tolerance() -> None:
    """The tolerance is a share of the baseline's value."""
    a, b = curves([1000, 1000]), curves([1000.5, 1000.5])
    assert not compare(a, b).agrees
    assert compare(a, b, 0.001, "relative").agrees
    assert not compare(a, b, 0.0001, "relative").agrees


def test_printed_rounding_is_allowed_for() -> None:
    """A norm printed with three decimals cannot agree better than its last digit; one printed with six can."""
    assert compare(curves([1, 2], [0.123, 0.456], "{:.3f}"), curves([1, 2], [0.123, 0.457], "{:.3f}"), 0.0001).agrees
    assert not compare(curves([1, 2], [0.123, 0.456], "{:.3f}"), curves([1, 2], [0.123, 0.458], "{:.3f}"), 0.0001).agrees
    assert not compare(curves([1, 2], [0.123, 0.456]), curves([1, 2], [0.123, 0.457]), 0.0001).agrees
    assert compare(curves([12.3456789], None, "{:.3g}"), curves([12.3456789], None, "{:.6f}"), 0).agrees
    assert compare(curves([12.3456789], None, "{:.2E}"), curves([12.3456789], None, "{:.6E}"), 0).agrees


def test_dropped_zeros_are_no_rounding() -> None:
    """`2.5` among values with four decimals is 2.5000."""
    series = read(b"step 1 loss 2.5\nstep 2 loss 2.4123\nstep 3 loss 0.0\n", ["loss", None]).series["loss"]
    assert series.rounding() == {1: pytest.approx(0.5e-4), 2: pytest.approx(0.5e-4), 3: pytest.approx(0.5e-4)}
    assert Series("loss").rounding() == {}


@pytest.mark.parametrize(("a", "b", "agrees"), [
    (math.nan, math.nan, True), (math.nan, 1, False), (1, math.nan, False), (math.inf, math.inf, True),
    (math.inf, 1, False), (1, math.inf, False), (math.inf, -math.inf, False), (math.inf, math.nan, False), (0, 0, True), (0, 1, False)])
def test_nan_and_infinity(a: float, b: float, agrees: bool) -> None:
    """NaN or infinity on one side is a difference, on both it is none; in either mode."""
    for mode in ("absolute", "relative"):
        result = compare(curves([5, a]), curves([5, b]), 0.01, mode)
        assert result.agrees is agrees
        assert result.diffs["loss"].first_step_over_tolerance == (None if agrees else 2)


def test_steps_that_only_one_side_has() -> None:
    """Another start, interval or length is said; only common steps are compared."""
    a = curves([5 - i / 10 for i in range(10)])
    b = read("".join(f"step {i} loss {5 - (i - 1) / 10:.6f}\n" for i in range(2, 15, 2)).encode(), ["loss", None])
    result = compare(a, b)
    assert result.agrees and result.diffs["loss"].steps_compared == 5
    assert result.unmatched_steps["loss"] == {"baseline": {"count": 5, "first": [1, 3, 5, 7, 9]}, "test": {"count": 2, "first": [12, 14]}}
    assert result.sentences == ["Loss: 两侧的步不同 (baseline step 1-10 共 10 步, test step 2-14 共 7 步 每 2 步), 只比较共同的 5 步"]


def test_no_common_step() -> None:
    """Without a common step nothing can be judged."""
    with pytest.raises(RunError, match="没有共同的步: baseline step 1-2 共 2 步, test step 100-101 共 2 步"):
        compare(curves([1, 2]), curves([1, 2], first=100))


def test_grad_norm_on_one_side_only() -> None:
    """It is said and not judged; the block has no line for it."""
    result = compare(curves([1, 2], [1, 2]), curves([1, 2]))
    assert result.agrees and list(result.diffs) == ["loss"]
    assert result.sentences == ["Grad Norm 只在 baseline 的日志中有, 不参与判断"]
    assert "Grad Norm" not in result_block(result)


LEVEL = [3.0] * 12


@pytest.mark.parametrize(("loss", "norm", "phase"), [
    ([3.1] + LEVEL[1:], LEVEL, Phase.FORWARD_OR_DATA),
    ([3.1] * 12, [3.1] * 12, Phase.FORWARD_OR_DATA),
    (LEVEL[:1] + [3.1] * 11, [3.1] * 12, Phase.BACKWARD),
    (LEVEL, [3.1] * 12, Phase.BACKWARD),
    (LEVEL[:1] + [3.1] * 11, LEVEL[:1] + [3.1] * 11, Phase.OPTIMIZER),
    (LEVEL[:1] + [3.1] * 11, LEVEL, Phase.OPTIMIZER),
    (LEVEL[:6] + [3.1] * 6, LEVEL[:6] + [3.1] * 6, Phase.LATE),
    (LEVEL, LEVEL[:1] + [3.1] * 11, Phase.LATE),
    ([math.nan] + LEVEL[1:], LEVEL, Phase.FORWARD_OR_DATA),
    (LEVEL[:1] + [3.1] * 11, None, Phase.BACKWARD),
    (LEVEL[:7] + [3.1] * 5, None, Phase.LATE),
    ([3 + 0.0002 * i for i in range(1, 13)], LEVEL, Phase.FORWARD_OR_DATA),
    (LEVEL[:1] + [3 + 0.0002 * i for i in range(1, 12)], LEVEL, Phase.OPTIMIZER),
])
def test_phase(loss: list, norm: list | None, phase: Phase) -> None:
    """Which of loss and grad norm parts first, and when; a slow drift is traced back to where it becomes visible."""
    assert phase_from_curves(compare(curves(LEVEL, norm and LEVEL), curves(loss, norm))) is phase


@pytest.mark.parametrize(("loss", "shape", "text"), [
    ([3.1] * 12, "first", "从第一个共同的 step 1 起就超出容差"),
    (LEVEL[:3] + [3.1] * 9, "early", "前 3 步一致, 训练早期的 step 4 突然超出容差"),
    (LEVEL[:8] + [3.1] * 4, "late", "前 8 步一致, 到 step 9 突然超出容差"),
    (LEVEL[:6] + [3.1] + LEVEL[7:], "spike", "只在 step 7 附近出现尖峰, 之后又一致"),
    ([3 + 0.0002 * i for i in range(12)], "drift", "差异逐步累积, 到 step 7 超出容差"),
    (LEVEL[:4] + [math.nan] * 8, "nan", "从 step 5 起一侧为 NaN 或无穷而另一侧不是"),
])
def test_shape(loss: list, shape: str, text: str) -> None:
    """The course of the differences is named in a sentence, with the phase that it points to."""
    result = compare(curves(LEVEL), curves(loss))
    assert result.diffs["loss"].shape == shape
    assert result.sentences[0] == f"Loss: {text}"
    assert result.sentences[-1].startswith("从曲线看, 指向") and result.sentences[-1].endswith("(只是线索, 不是结论)")


DOWN = [10 * 0.9**i for i in range(20)]


def suspicion(a: Metrics, b: Metrics) -> str:
    """What is said between the shape and the phase."""
    return " ".join(sentence for sentence in compare(a, b).sentences if "疑似" in sentence)


def test_suspicions_of_a_logging_difference() -> None:
    """A constant factor, numbering from 0, a running mean and a mean over an interval are named; a real difference is not."""
    assert "之比恒为 8" in suspicion(curves(DOWN), curves([8 * x for x in DOWN]))
    assert "test 的 step n-1 与 baseline 的 step n 数值相同" in suspicion(curves(DOWN), curves(DOWN, first=0))
    running = [sum(DOWN[: i + 1]) / (i + 1) for i in range(20)]
    assert "test 的数值等于另一侧从开头到该步的平均" in suspicion(curves(DOWN), curves(running))
    means = "".join(f"step {i} loss {sum(DOWN[i - 5 : i]) / 5:.6f}\n" for i in range(5, 21, 5))
    assert "test 的数值等于另一侧最近 5 步的平均" in suspicion(curves(DOWN), read(means.encode(), ["loss", None]))
    assert "baseline 的数值等于另一侧最近 5 步的平均" in suspicion(read(means.encode(), ["loss", None]), curves(DOWN))
    rnd = random.Random(0)
    assert suspicion(curves(DOWN), curves([x + rnd.random() for x in DOWN])) == ""
    assert suspicion(curves([0.5] * 30 + [0.1] * 10), curves([0.5] * 30 + [9.0] + [0.1] * 9)) == ""  # one wild step makes all else look small


def test_result_block() -> None:
    """The block word for word."""
    a, b = curves([2, 3], [1, 2]), curves([2, 3.000246], [1.000468, 2])
    assert result_block(compare(a, b)) == (
        "==================================================\n精度对比结果:\n==================================================\n"
        "Loss - 平均差异: 0.000123, 最大差异: 0.000246\nGrad Norm - 平均差异: 0.000234, 最大差异: 0.000468\n"
        "精度一致性: ✓ 一致\n=================================================="
    )
    assert "精度一致性: ✗ 不一致" in result_block(compare(a, b, 0.0001))
    assert "Loss - 平均差异: nan, 最大差异: nan" in result_block(compare(curves([1, 2]), curves([1, math.nan])))
    assert "Loss - 平均差异: inf, 最大差异: inf" in result_block(compare(curves([1, 2]), curves([1, math.inf])))
